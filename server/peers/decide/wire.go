package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// askOf writes a request as a question. sizes are the block sizes of its pool.
func askOf(req *chooser.Request, sizes []int, rankOf func(replica.Slot) (replica.Rank, bool)) *peerv1.Ask {
	ask := &peerv1.Ask{
		Id: req.ID, Attempt: uint32(req.Attempt), RequestId: text(req.RequestID), TraceId: req.TraceID, SpanId: req.SpanID, Sampled: req.Sampled,
		Model: text(req.Model), Served: text(req.Served), Adapter: text(req.Adapter), Tenant: text(req.Tenant), Session: text(req.Session), SessionReturn: span(req.SessionReturn),
		PromptTokens: uint32(max(0, req.PromptTokens)), Estimated: req.Estimated, Longest: uint32(max(0, req.Longest)), Keyless: req.Keyless,
		Priority: int32(req.Priority), ExpectedOutput: uint32(max(0, req.ExpectedOutput)), Unstreamed: req.Unstreamed, Bytes: uint32(max(0, req.Bytes)),
		Quiet: req.Quiet, Exclude: texts(req.Exclude), Avoid: texts(req.Avoid), Holder: text(req.Holder), Leased: req.Lease != 0, Reports: req.Reports,
		Unbooked: req.Booking == chooser.Unbooked, NoQueue: req.NoQueue, Unread: req.Unread, Samples: uint32(max(0, req.Samples)),
		Split: text(req.Side.Model), Side: text(req.Side.Name), InsteadOf: text(req.Side.InsteadOf),
	}
	ask.Copies = req.Copier != nil
	ask.Directory = directoryOf(req.Directory, rankOf)
	if req.Hashes != nil {
		for _, size := range sizes {
			ask.Keys = append(ask.Keys, keysOf(size, req.Hashes(size)))
		}
	}
	if a := &req.Answer; a.Held > a.Known {
		if r, ok := rankOf(a.Slot); ok {
			ask.Answer = &peerv1.AnswerHeld{ReplicaId: string(r.Replica), Rank: uint32(r.Index), Known: uint32(a.Known), Held: uint32(a.Held)}
		}
	}
	if o := &req.Options; !plain(o) {
		ask.Options = &peerv1.AskOptions{
			Policy: text(o.Policy), Weights: weights(o.Weights), Ttft: span(o.Targets.TTFT), Tpot: span(o.Targets.TPOT), Allowed: texts(o.Allowed), Denied: texts(o.Denied),
			Pinned: text(o.Pinned), PinnedRank: int32(o.PinnedRank), MinRank: int32(o.MinRank), MaxRank: int32(o.MaxRank), MaxRequests: uint32(max(0, o.MaxRequests)),
			Objective: text(o.Objective),
		}
	}
	return ask
}

// objectiveOf reads an objective. One that this router does not have is none.
func objectiveOf(name string) decision.Objective {
	if o := decision.Objective(name); o.Known() {
		return o
	}
	return ""
}

// plain reports whether the options ask nothing.
func plain(o *chooser.Options) bool {
	return o.Policy == "" && o.Objective == "" && len(o.Weights) == 0 && !o.Targets.Set() && len(o.Allowed) == 0 && len(o.Denied) == 0 && o.Pinned == "" &&
		o.MinRank == 0 && o.MaxRank == 0 && o.MaxRequests == 0
}

// requestOf reads a question. replicas is its pool here.
func requestOf(ask *peerv1.Ask, from ID, replicas []*replica.Replica) *chooser.Request {
	req := &chooser.Request{
		Request: decision.Request{
			ID: ask.GetId(), Attempt: int(ask.GetAttempt()), RequestID: ask.GetRequestId(), Tenant: ask.GetTenant(), Model: ask.GetModel(), Adapter: ask.GetAdapter(),
			TraceID: ask.GetTraceId(), SpanID: ask.GetSpanId(), Side: decision.Side{Model: ask.GetSplit(), Name: ask.GetSide(), InsteadOf: ask.GetInsteadOf()},
		},
		Pool:   chooser.Pool{Served: ask.GetServed(), Replicas: replicas},
		Prompt: promptOf(ask, replicas),
		Caller: chooser.Caller{Session: ask.GetSession(), SessionReturn: min(ask.GetSessionReturn().AsDuration(), maxSpan), Priority: int(ask.GetPriority())},
		// The frontend keeps the lease of an external caller; whether its request was sent is unknown.
		Reply: chooser.Reply{
			ExpectedOutput: tokensOf(ask.GetExpectedOutput()), Samples: int(min(ask.GetSamples(), maxSamples)),
			Unstreamed: ask.GetUnstreamed() || ask.GetLeased() && !ask.GetReports(), Quiet: ask.GetQuiet() || ask.GetLeased(),
		},
		Limits: chooser.Limits{Exclude: ids(ask.GetExclude()), Avoid: ids(ask.GetAvoid()), Holder: replica.ID(ask.GetHolder())},
		Terms:  chooser.Terms{NoQueue: ask.GetNoQueue(), Again: true, Splittable: ask.GetPrefillNumber() != 0},
		Origin: chooser.Origin{AskedBy: from, Age: max(0, min(ask.GetAge().AsDuration(), maxSpan))},
		Bytes:  int(ask.GetBytes()), Sampled: ask.GetSampled(),
	}
	if ask.GetUnbooked() {
		req.Booking = chooser.Unbooked
	}
	if o := ask.GetOptions(); o != nil {
		req.Options = chooser.Options{
			Policy: decision.Policy(o.GetPolicy()), Weights: o.GetWeights(), Targets: decision.Targets{TTFT: o.GetTtft().AsDuration(), TPOT: o.GetTpot().AsDuration()},
			Allowed: ids(o.GetAllowed()), Denied: ids(o.GetDenied()), Pinned: replica.ID(o.GetPinned()), PinnedRank: int(o.GetPinnedRank()),
			MinRank: int(o.GetMinRank()), MaxRank: int(o.GetMaxRank()), MaxRequests: int(o.GetMaxRequests()),
			Objective: objectiveOf(o.GetObjective()),
		}
	}
	return req
}

// promptOf reads the known facts about the prompt of a question.
func promptOf(ask *peerv1.Ask, replicas []*replica.Replica) chooser.Prompt {
	p := chooser.Prompt{
		PromptTokens: tokensOf(ask.GetPromptTokens()), Estimated: ask.GetEstimated(), Longest: tokensOf(ask.GetLongest()), Keyless: ask.GetKeyless(),
		Unread: ask.GetUnread(), Hashes: hashesOf(ask.GetKeys()), Directory: readDirectory(ask.GetDirectory(), replicas),
	}
	if a := ask.GetAnswer(); a != nil {
		if slot, ok := slotOf(replicas, replica.ID(a.GetReplicaId()), int(a.GetRank())); ok {
			p.Answer = chooser.Answer{Slot: slot, Known: int(a.GetKnown()), Held: int(a.GetHeld())}
		}
	}
	return p
}

// chosenOf writes a choice as the answer to a question.
func chosenOf(number uint64, c *chooser.Choice, now time.Time) *peerv1.Chosen {
	d, cand := c.Decision, c.Decision.Pick()
	others := d.Servers()
	if cand.Veto == decision.VetoNone {
		others--
	}
	out := &peerv1.Chosen{
		Number: number, ReplicaId: string(cand.Replica), Rank: uint32(cand.Rank), Policy: string(d.Policy), Reason: string(d.Reason), Feed: feedCode(cand.Feed),
		BlockSize: cand.BlockSize, GpuTokens: cand.GPU, CpuTokens: cand.CPU, DiskTokens: cand.Disk, UncachedTokens: cand.Uncached,
		PrefillS: cand.Prefill, BacklogS: cand.Backlog, TtftS: cand.TTFT, TpotS: cand.TPOT, Cost: cand.Cost, Margin: d.Margin,
		Requests: cand.Requests, Waiting: cand.Waiting, Others: uint32(others + d.Others), Held: span(d.Held), TooLong: d.TooLong,
		FullStepS: cand.FullStep, StepS: cand.StepTime, Slowdown: cand.Slowdown, Load: d.Load, MemoryWait: memoryWait(d.Memory),
		OtherReplica: d.HasOtherReplica(), Adapter: adapterCost(&cand.Adapting), Ways: waysOf(d.Ways, now),
	}
	if lead := c.Prefill(); lead != nil {
		out.Prefill = prefillOf(lead.Decision.Pick())
	}
	return out
}

// decisionOf reads the answer to req, which the rank at slot serves. waited is the time since this router has the request: it was
// held for no longer than that.
func decisionOf(in *peerv1.Chosen, req *chooser.Request, by ID, slot replica.Slot, now time.Time, waited time.Duration) *decision.Decision {
	both := new(struct {
		d     decision.Decision
		cands [1]decision.Candidate
	})
	both.cands[0] = candidateOf(in, slot, uint32(max(0, req.PromptTokens)))
	both.d = decision.Decision{
		Request: req.Request, Prompt: req.Size(req.ExpectedOutput), At: now, Reason: decision.ReadReason(in.GetReason()), Margin: finite(in.GetMargin()),
		Rule:     decision.Rule{Policy: decision.ReadPolicy(in.GetPolicy()), Pinned: req.IsPinned()},
		Ranks:    decision.Ranks{Candidates: both.cands[:], Others: int(in.GetOthers()), Elsewhere: in.GetOtherReplica()},
		Fleet:    decision.Fleet{Load: finite(in.GetLoad())},
		Memory:   memoryWaitOf(in.GetMemoryWait()),
		Lookup:   req.Lookup(),
		Timing:   decision.Timing{Held: max(0, min(in.GetHeld().AsDuration(), waited))},
		Deciders: decision.Deciders{DecidedBy: by},
	}
	both.d.TooLong = in.GetTooLong()
	return &both.d
}

// adapterCost writes the cost of a LoRA adapter; nil for none.
func adapterCost(a *decision.Adapting) *peerv1.AdapterCost {
	if a.Adapter == decision.AdapterNone {
		return nil
	}
	return &peerv1.AdapterCost{State: a.Adapter.String(), WaitS: float64(a.AdapterWait), LoadS: float64(a.AdapterLoad), LossS: float64(a.AdapterLoss)}
}

// adaptingOf reads the cost of a LoRA adapter.
func adaptingOf(in *peerv1.AdapterCost) decision.Adapting {
	a := decision.Adapting{AdapterWait: float32(amount(in.GetWaitS())), AdapterLoad: float32(amount(in.GetLoadS())), AdapterLoss: float32(amount(in.GetLossS()))}
	for _, state := range decision.AdapterStates() {
		if state.String() == in.GetState() {
			a.Adapter = state
		}
	}
	return a
}

// overlapOf reads the chosen rank's part of a prompt.
func overlapOf(in *peerv1.Chosen, prompt uint32) decision.Overlap {
	return decision.Overlap{
		Feed: feedOf(in.GetFeed()), BlockSize: in.GetBlockSize(),
		GPU: min(in.GetGpuTokens(), prompt), CPU: min(in.GetCpuTokens(), prompt), Disk: min(in.GetDiskTokens(), prompt),
	}
}

// feeds are the wire form of the states of feeds.
var feeds = [...]peerv1.Feed{
	kvblock.FeedNone: peerv1.Feed_FEED_NONE, kvblock.FeedCold: peerv1.Feed_FEED_COLD,
	kvblock.FeedExact: peerv1.Feed_FEED_EXACT, kvblock.FeedDegraded: peerv1.Feed_FEED_DEGRADED,
}

func feedCode(s kvblock.FeedState) peerv1.Feed { return feeds[s] }

// feedOf reads the state of a feed.
func feedOf(in peerv1.Feed) kvblock.FeedState {
	return kvblock.FeedState(max(0, slices.Index(feeds[:], in)))
}

// forecastOf reads the prediction for a prompt on the chosen rank.
func forecastOf(in *peerv1.Chosen, prompt uint32) decision.Forecast {
	return decision.Forecast{
		Uncached: min(in.GetUncachedTokens(), prompt), Prefill: amount(in.GetPrefillS()), Backlog: amount(in.GetBacklogS()),
		TTFT: amount(in.GetTtftS()), TPOT: amount(in.GetTpotS()),
	}
}

// endOf writes how a request ended.
func endOf(number uint64, r chooser.Result) *peerv1.RequestEnd {
	return &peerv1.RequestEnd{
		Number: number, End: endCode(r.End), PromptTokens: count(r.PromptTokens), OutputTokens: count(r.OutputTokens),
		CachedTokens: count(r.CachedTokens), Counted: r.Counted, ServedBy: string(r.ServedBy),
	}
}

// resultOf reads how a request ended.
func resultOf(in *peerv1.RequestEnd) chooser.Result {
	r := chooser.ResultOf(decision.EndFailed)
	r.Counted, r.ServedBy = in.GetCounted(), replica.ID(in.GetServedBy())
	for e := decision.EndCompleted; e <= decision.EndPoisoned; e++ {
		if e != decision.EndUnserved && endCode(e) == in.GetEnd() {
			r.End = e
		}
	}
	if in.PromptTokens != nil {
		r.PromptTokens = int(in.GetPromptTokens())
	}
	if in.OutputTokens != nil {
		r.OutputTokens = int(in.GetOutputTokens())
	}
	if in.CachedTokens != nil {
		r.CachedTokens = int(in.GetCachedTokens())
	}
	return r
}

func endCode(e decision.End) peerv1.End {
	switch e {
	case decision.EndCompleted:
		return peerv1.End_END_COMPLETED
	case decision.EndCanceled:
		return peerv1.End_END_CANCELED
	case decision.EndRejected:
		return peerv1.End_END_REJECTED
	case decision.EndMoved:
		return peerv1.End_END_MOVED
	case decision.EndExpired:
		return peerv1.End_END_EXPIRED
	case decision.EndRemoved:
		return peerv1.End_END_REMOVED
	case decision.EndResumed:
		return peerv1.End_END_RESUMED
	case decision.EndHandedOver:
		return peerv1.End_END_HANDED_OVER
	case decision.EndPoisoned:
		return peerv1.End_END_POISONED
	default:
		return peerv1.End_END_FAILED
	}
}

// The causes of Refused that are not the hold queue's.
const (
	causeNoReplica = "no_replica"
	causeInvalid   = "invalid"
	causeDuplicate = "duplicate"
)

// refusalOf writes an error of the chooser.
func refusalOf(number uint64, err error) *peerv1.Refused {
	var none *chooser.NoReplica
	var refused *chooser.Refused
	switch out := (&peerv1.Refused{Number: number, Message: text(err.Error())}); {
	case errors.As(err, &none):
		out.Cause, out.RetryAfter = causeNoReplica, span(none.RetryAfter)
		return out
	case errors.As(err, &refused):
		out.Cause, out.RetryAfter, out.MemoryWait = refused.Cause, span(refused.RetryAfter), memoryWait(refused.Memory)
		return out
	case errors.Is(err, chooser.ErrDuplicate):
		out.Cause = causeDuplicate
		return out
	default:
		out.Cause = causeInvalid
		return out
	}
}

// errorOf reads a refusal; nil for one that the frontend must look at itself.
func errorOf(in *peerv1.Refused) error {
	switch cause := in.GetCause(); cause {
	case causeNoReplica:
		return nil
	case causeInvalid:
		return fmt.Errorf("%w: %s", chooser.ErrInvalid, clip(in.GetMessage()))
	case causeDuplicate:
		return fmt.Errorf("%w: %s", chooser.ErrDuplicate, clip(in.GetMessage()))
	default:
		return &chooser.Refused{
			Cause: ask.ReadCause(cause), RetryAfter: max(0, min(in.GetRetryAfter().AsDuration(), maxRetryAfter)), Memory: memoryWaitOf(in.GetMemoryWait()),
		}
	}
}

// memoryWait writes the wait of a program's call for memory.
func memoryWait(w *decision.MemoryWait) *peerv1.MemoryWait {
	if w == nil {
		return nil
	}
	return &peerv1.MemoryWait{
		Program: w.Program, NeededTokens: uint64(max(0, w.Tokens)), FreeTokens: uint64(max(0, w.Free)), ProgramsBefore: uint32(max(0, w.Before)),
		Expected: span(w.Expected), Waited: span(w.Waited),
	}
}

// memoryWaitOf reads the wait of a program's call for memory.
func memoryWaitOf(in *peerv1.MemoryWait) *decision.MemoryWait {
	if in == nil {
		return nil
	}
	return &decision.MemoryWait{
		Program: in.GetProgram(), Tokens: int(min(in.GetNeededTokens(), maxMemory)), Free: int(min(in.GetFreeTokens(), maxMemory)), Before: int(in.GetProgramsBefore()),
		Expected: max(0, min(in.GetExpected().AsDuration(), maxSpan)), Waited: max(0, min(in.GetWaited().AsDuration(), maxSpan)),
	}
}

func keysOf(size int, hashes []blockhash.Hash) *peerv1.BlockKeys {
	keys := make([]uint64, len(hashes))
	for i, h := range hashes {
		keys[i] = uint64(h)
	}
	return &peerv1.BlockKeys{BlockSize: uint32(size), Keys: keys}
}

// hashesOf gives the hashes by block size; nil when there are none.
func hashesOf(keys []*peerv1.BlockKeys) func(size int) []blockhash.Hash {
	if len(keys) == 0 {
		return nil
	}
	all := make([][]blockhash.Hash, len(keys))
	for i, k := range keys {
		all[i] = hashes(k)
	}
	return func(size int) []blockhash.Hash {
		i := slices.IndexFunc(keys, func(k *peerv1.BlockKeys) bool { return int(k.GetBlockSize()) == size })
		if i < 0 {
			return nil
		}
		return all[i]
	}
}

func hashes(k *peerv1.BlockKeys) []blockhash.Hash {
	list := make([]blockhash.Hash, len(k.GetKeys()))
	for i, key := range k.GetKeys() {
		list[i] = blockhash.Hash(key)
	}
	return list
}

func slotOf(replicas []*replica.Replica, id replica.ID, rank int) (replica.Slot, bool) {
	for _, r := range replicas {
		if r.ID == id && rank < len(r.Slots) {
			return r.Slots[rank], true
		}
	}
	return replica.NoSlot, false
}

// text is s with the bytes replaced that no string of a message may have: a message that cannot be written cuts the link.
func text[S ~string](s S) string {
	if utf8.ValidString(string(s)) {
		return string(s)
	}
	return strings.ToValidUTF8(string(s), "\ufffd")
}

// weights are w with names that a message may have.
func weights(w map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(w))
	for name, v := range w {
		out[text(name)] = v
	}
	return out
}

func texts(list []replica.ID) []string {
	if len(list) == 0 {
		return nil
	}
	out := make([]string, len(list))
	for i, id := range list {
		out[i] = text(id)
	}
	return out
}

func ids(list []string) []replica.ID {
	if len(list) == 0 {
		return nil
	}
	out := make([]replica.ID, len(list))
	for i, id := range list {
		out[i] = replica.ID(id)
	}
	return out
}

func span(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func count(n int) *uint32 {
	if n < 0 {
		return nil
	}
	v := uint32(n)
	return &v
}
