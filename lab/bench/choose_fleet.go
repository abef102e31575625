package bench

import (
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/peers/decide"
)

// fleetFigures are a decider's work for the routers of its fleet.
type fleetFigures struct {
	Ranks        int     `json:"ranks"`
	Blocks       int     `json:"blocks"`
	PromptTokens int     `json:"prompt_tokens"`
	QuestionSize int     `json:"question_bytes"`
	PerSecond1   float64 `json:"decisions_per_s_1"`
	PerSecond2   float64 `json:"decisions_per_s_2"`
}

// fleetBed is a decider before the ranks of a chooseBed, with peers that ask.
type fleetBed struct {
	*chooseBed
	decider *decide.Decider
	size    int // of a question in bytes
}

// nowhere is a fleet of which only this decider runs: replies go nowhere, but their bytes are made.
type nowhere struct{ bed *chooseBed }

func (nowhere) Pool(model string) string                    { return model }
func (n nowhere) Serving(string, string) []*replica.Replica { return n.bed.replicas }
func (n nowhere) RankOf(slot replica.Slot) (replica.Rank, bool) {
	return replica.Rank{Replica: n.bed.replicas[slot].ID}, true
}
func (nowhere) Broken() []replica.ID                              { return nil }
func (nowhere) Ability() peerv1.Ability                           { return peerv1.Ability_ABILITY_ABLE }
func (nowhere) SendEvent(decide.ID, *peerv1.FrontendEvent)        {}
func (nowhere) SendReply(_ decide.ID, reply *peerv1.DeciderReply) { _, _ = proto.Marshal(reply) }

// runFleet measures the cost to the decider of a pool of a peer's request: to read its messages, choose, book, answer and release.
// The cost to the peer, and the connection, are not in it.
func (b *benchChoose) runFleet() (*fleetFigures, error) {
	plain, err := b.newBed()
	if err != nil {
		return nil, err
	}
	bed := &fleetBed{chooseBed: plain}
	bed.decider = decide.NewDecider(decide.DefaultConfig(), decide.Params{
		Self: "00000000", Chooser: plain.chooser, Replicas: nowhere{plain}, Fleet: nowhere{plain},
	})
	f := &fleetFigures{Ranks: b.ranks, Blocks: b.blocks, PromptTokens: b.promptTokens}
	if _, err := bed.ask(0, 500*time.Millisecond); err != nil {
		return nil, err
	}
	f.QuestionSize = bed.size
	var rates [2][]float64
	for turn := range 2 * chooseTurns {
		cores := 1 + (turn+turn/2)%2
		rate, err := bed.rate(cores, b.duration/chooseTurns)
		if err != nil {
			return nil, err
		}
		rates[cores-1] = append(rates[cores-1], rate)
	}
	f.PerSecond1, f.PerSecond2 = measure.Median(rates[0]), measure.Median(rates[1])
	return f, nil
}

func printFleetBench(out io.Writer, f *fleetFigures) error {
	_, err := fmt.Fprintf(out, "a decider for its peers, %d ranks, %d blocks, prompts of %d tokens (questions of %d bytes): %.0f decisions/s on one core, %.0f on two\n",
		f.Ranks, f.Blocks, f.PromptTokens, f.QuestionSize, f.PerSecond1, f.PerSecond2)
	return err
}

// rate is the decisions per second for so many peers on as many cores.
func (bed *fleetBed) rate(cores int, d time.Duration) (float64, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	var wait sync.WaitGroup
	rates, errs := make([]float64, cores), make([]error, cores)
	for i := range cores {
		wait.Go(func() { rates[i], errs[i] = bed.ask(2+i, d) })
	}
	wait.Wait()
	sum := 0.0
	for i := range cores {
		if errs[i] != nil {
			return 0, errs[i]
		}
		sum += rates[i]
	}
	return sum, nil
}

// ask has a peer ask for d; it returns decisions per second.
func (bed *fleetBed) ask(peer int, d time.Duration) (float64, error) {
	n, err := bed.handle(peer, d)
	return float64(n) / d.Seconds(), err
}

// fleetBatch is how many questions are made ready before they are handled: the peer's own time does not count.
const fleetBatch = 256

// handle handles a peer's messages for d of handling time and returns how many requests that were.
func (bed *fleetBed) handle(peer int, d time.Duration) (int, error) {
	from := fmt.Sprintf("%08x", peer+1)
	bed.decider.Up(from)
	defer bed.decider.Down(from)
	flight := uint64(chooseInFlight * len(bed.replicas))
	prefix := from + strconv.FormatInt(time.Now().UnixNano(), 36) + "-"
	var number uint64
	var spent time.Duration
	for n := 0; ; {
		var messages [][]byte
		for range fleetBatch {
			number++
			list, err := bed.messages(prefix, number, flight)
			if err != nil {
				return 0, err
			}
			messages = append(messages, list...)
		}
		began := time.Now()
		for i, msg := range messages {
			ev := &peerv1.FrontendEvent{}
			if err := proto.Unmarshal(msg, ev); err != nil {
				return 0, err
			}
			bed.decider.Event(from, ev)
			if i%64 == 0 && spent+time.Since(began) > d {
				n += i * fleetBatch / len(messages)
				bed.end(from, number)
				return n, nil
			}
		}
		spent += time.Since(began)
		n += fleetBatch
	}
}

// messages are a peer's messages about one request, and of the end of an earlier one.
func (bed *fleetBed) messages(prefix string, number, flight uint64) ([][]byte, error) {
	tokens := bed.prompts[int(number*13)%len(bed.prompts)]
	hashes := blockhash.Chain(nil, tokens, chooseBlock, blockhash.Namespace{})
	keys := make([]uint64, len(hashes))
	for i, h := range hashes {
		keys[i] = uint64(h)
	}
	events := []*peerv1.FrontendEvent{
		{Event: &peerv1.FrontendEvent_Ask{Ask: &peerv1.Ask{
			Number: number, Id: prefix + strconv.FormatUint(number, 10), Model: "m", PromptTokens: uint32(len(tokens)), ExpectedOutput: 256, Unstreamed: true, NoQueue: true,
			Keys: []*peerv1.BlockKeys{{BlockSize: chooseBlock, Keys: keys}},
		}}},
		{Event: &peerv1.FrontendEvent_Begin{Begin: number}},
		{Event: &peerv1.FrontendEvent_FirstToken{FirstToken: number}},
	}
	if number > flight {
		events = append(events, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_End{End: &peerv1.RequestEnd{Number: number - flight, End: peerv1.End_END_COMPLETED}}})
	}
	list := make([][]byte, len(events))
	for i, ev := range events {
		var err error
		if list[i], err = proto.Marshal(ev); err != nil {
			return nil, err
		}
	}
	bed.size = len(list[0])
	return list, nil
}

// end releases the peer's requests in flight.
func (bed *fleetBed) end(from decide.ID, last uint64) {
	for n := uint64(1); n <= last; n++ {
		bed.decider.Event(from, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Drop{Drop: n}})
	}
}
