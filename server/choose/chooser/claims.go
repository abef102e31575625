package chooser

import (
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// claims are the programs of the requests for one model, and their claims on the ranks' memory.
type claims struct {
	ledger *programs.Ledger
	chains *programs.Chains
}

func newClaims() *claims { return &claims{ledger: programs.New(), chains: programs.NewChains()} }

// leave ends a call that the ledger counts and that is not placed.
func (g *claims) leave(call *programs.Call) {
	if call.Name != 0 {
		g.ledger.Leave(call.Name)
	}
}

// place books the program's memory on the chosen rank; nil for a call that the ledger does not count.
func (g *claims) place(of *callForMemory, cand *decision.Candidate, now int64) *programs.Place {
	if of.call.Name == 0 {
		return nil
	}
	return g.ledger.Place(of.call, rankOf(cand), time.Duration(now))
}

// callForMemory is a request's call in the ledger of programs: ranks are the ranks that may serve it, full the ranks among them without
// memory for it.
type callForMemory struct {
	call  programs.Call
	ranks []programs.Rank
	full  []replica.Slot
}

// call is a request's call in the ledger: of its session, or else of the program that its prompt continues. A Name of 0 is none.
func (g *claims) call(sessions *sessions, req *ask.Request, hashes []blockhash.Hash, blockSize int) programs.Call {
	call := programs.Call{Class: req.Tenant, Tenant: req.Tenant, Tokens: req.PromptTokens, Prompt: req.PromptTokens, Retry: req.Attempt > 0}
	if at := headTokens/max(1, blockSize) - 1; !req.Keyless && at < len(hashes) && len(hashes) > 0 {
		call.Head = uint64(hashes[max(0, at)])
	}
	name := func(session string) programs.Name { return programs.Name(max(1, sessions.name(req.Tenant, session))) }
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

// rankOf is the memory of a candidate.
func rankOf(cand *decision.Candidate) programs.Rank {
	size := float64(cand.BlockSize)
	return programs.Rank{Slot: cand.Slot, Capacity: size * float64(cand.Blocks), Booked: size * cand.DecodeBlocks, Held: float64(cand.GPU), Bend: cand.Bend}
}

// programCall is a choice's call in the ledger of programs. It is an Observer.
type programCall struct {
	ask.EndOnly
	place    *programs.Place
	returns  time.Duration // the request's SessionReturn
	prompt   int           // tokens
	clock    *clock.Clock
	settings *settings.Current
}

// Ended implements Observer.
func (p *programCall) Ended(end *ask.End) {
	p.place.End(p.prompt+end.Output, p.returns < 0, p.returns > p.settings.Horizon(), time.Duration(p.clock.Since(end.At)))
}

// resume sets the call to one that has waited.
func (p *callForMemory) resume(call programs.Call, full []replica.Slot) {
	p.call, p.full = call, append(p.full[:0], full...)
}
