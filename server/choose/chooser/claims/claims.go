package claims

import (
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Claims are the programs of the requests for one model, and their claims on the ranks' memory.
type Claims struct {
	Ledger *programs.Ledger
	chains *programs.Chains
}

// New returns the claims of a model without programs, on the memory of ranks.
func New(ranks *programs.Ranks) *Claims {
	return &Claims{Ledger: programs.New(ranks), chains: programs.NewChains()}
}

// Leave ends a call that the ledger counts and that is not placed.
func (g *Claims) Leave(call *programs.Call) {
	if call.Name != 0 {
		g.Ledger.Leave(call.Name)
	}
}

// Place books the program's memory on the chosen rank; nil for a call that the ledger does not count, which is plain traffic.
func (g *Claims) Place(of *Call, cand *decision.Candidate, now int64) *programs.Place {
	if of.Call.Name == 0 {
		g.Ledger.Plain(RankOf(cand), time.Duration(now))
		return nil
	}
	return g.Ledger.Place(of.Call, RankOf(cand), time.Duration(now))
}

// Call is a request's call in the ledger of programs: ranks are the ranks that may serve it, full the ranks among them without
// memory for it.
type Call struct {
	Call  programs.Call
	Ranks []programs.Rank
	Full  []replica.Slot
}

// Call is a request's call in the ledger: of its session, or else of the program that its prompt continues. A Name of 0 is none.
func (g *Claims) Call(sessions *past.Sessions, req *ask.Request, hashes []blockhash.Hash, blockSize int) programs.Call {
	call := programs.Call{Class: req.Tenant, Tenant: req.Tenant, Tokens: req.PromptTokens, Prompt: req.PromptTokens, Retry: req.Attempt > 0}
	if at := headTokens/max(1, blockSize) - 1; !req.Keyless && at < len(hashes) && len(hashes) > 0 {
		call.Head = uint64(hashes[max(0, at)])
	}
	name := func(session string) programs.Name { return programs.Name(max(1, sessions.Name(req.Tenant, session))) }
	switch {
	case req.Session != "":
		call.Name = name(req.Session)
		// A subagent's name is its agent's, a slash, and its own (openai.SessionFrom).
		if i := strings.LastIndexByte(req.Session, '/'); i > 0 {
			call.Parent = name(req.Session[:i])
		}
	case !req.Keyless && len(hashes) > 0:
		found := g.chains.Find(uint64(name("")), hashes, req.PromptTokens, call.Retry)
		call.Name, call.Parent = found.Name, found.Parent
		call.Class += prompts
	}
	return call
}

// headTokens is the length of the beginning by which prompts of one application are alike. Templates begin all prompts of a model alike.
const headTokens = 256

// prompts marks the class of a tenant's calls without a session: they differ from calls with one.
const prompts = "\x00prompts"

// RankOf is the memory of a candidate.
func RankOf(cand *decision.Candidate) programs.Rank {
	size := float64(cand.BlockSize)
	return programs.Rank{Slot: cand.Slot, Capacity: size * float64(cand.Blocks), Booked: size * cand.DecodeBlocks, Held: float64(cand.GPU), Loads: float64(cand.Loadable), Pace: programs.Pace{Token: cand.TokenTime, Bend: cand.Bend}, Work: cand.Prefill}
}

// Booked is a choice's call in the ledger of programs. It is an Observer.
type Booked struct {
	ask.EndOnly
	Place    *programs.Place
	Returns  time.Duration // the request's SessionReturn
	Prompt   int           // tokens
	Clock    *clock.Clock
	Settings *settings.Current
}

// Ended implements Observer.
func (p *Booked) Ended(end *ask.End) {
	p.Place.End(p.Prompt+end.Output, p.Returns < 0, p.Returns > p.Settings.Horizon(), time.Duration(p.Clock.Since(end.At)))
}

// Resume sets the call to one that has waited.
func (p *Call) Resume(call programs.Call, full []replica.Slot) {
	p.Call, p.Full = call, append(p.Full[:0], full...)
}
