package enginesim

import (
	"net"
	"net/http"
	"strconv"
)

func (d *dialect) health(c *call) { c.send(http.StatusOK, "", nil) }

func (d *dialect) versionReply(c *call) {
	v := map[string]string{"version": d.features.name}
	if d.cfg.Rust {
		v["rust_frontend_version"] = d.features.name
	}
	c.reply(http.StatusOK, v)
}

// eventSource has the settings of one rank's publisher.
type eventSource struct {
	Enabled     bool    `json:"enable_kv_cache_events"`
	Publisher   string  `json:"publisher"`
	Endpoint    string  `json:"endpoint"`
	Replay      *string `json:"replay_endpoint"`
	BufferSteps int     `json:"buffer_steps"`
	HWM         int     `json:"hwm"`
	MaxQueue    int     `json:"max_queue_size"`
	Topic       string  `json:"topic"`
}

// eventSources answers where each rank publishes; a socket on all addresses is named with a wildcard.
func (l *life) eventSources(c *call) {
	all := map[string]eventSource{}
	for rank, r := range l.events {
		s := eventSource{
			Enabled: true, Publisher: "zmq", Endpoint: bound(r.ln.Addr()),
			BufferSteps: l.cfg.ReplayBuffer, HWM: 100_000, MaxQueue: 100_000, Topic: l.cfg.Topic,
		}
		if rank < len(l.replays) {
			replay := bound(l.replays[rank].ln.Addr())
			s.Replay = &replay
		}
		all[strconv.Itoa(rank)] = s
	}
	c.replyNulls(all)
}

func bound(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "inproc://" + addr.String() // a listener without a network
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "*"
	}
	return "tcp://" + net.JoinHostPort(host, port)
}

func (l *life) serverLoad(c *call) {
	n := int64(0) // Python counts only with --enable-server-load-tracking
	if l.cfg.Rust {
		n = l.load.Load()
	}
	c.reply(http.StatusOK, map[string]int64{"server_load": n})
}

func (l *life) resetPrefixCache(c *call) {
	ok := l.ResetPrefixCache()
	if !l.features.has(resetReply) {
		c.send(http.StatusOK, "", nil)
		return
	}
	c.reply(http.StatusOK, map[string]bool{"success": ok})
}

type modelCard struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	OwnedBy     string       `json:"owned_by"`
	Root        string       `json:"root"`
	Parent      *string      `json:"parent"`
	MaxModelLen *int         `json:"max_model_len"`
	Permission  []permission `json:"permission"`
}

type permission struct {
	ID            string  `json:"id"`
	Object        string  `json:"object"`
	Created       int64   `json:"created"`
	AllowSampling bool    `json:"allow_sampling"`
	AllowLogprobs bool    `json:"allow_logprobs"`
	AllowView     bool    `json:"allow_view"`
	Organization  string  `json:"organization"`
	Group         *string `json:"group"`
	IsBlocking    bool    `json:"is_blocking"`
}

func (l *life) models(c *call) {
	now := l.started.Unix()
	card := func(id string) modelCard {
		return modelCard{ID: id, Object: "model", Created: now, OwnedBy: "vllm", Root: id, Permission: []permission{{
			ID: "modelperm-" + l.newID(), Object: "model_permission", Created: now,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*",
		}}}
	}
	var list []modelCard
	for _, name := range l.cfg.Models {
		m := card(name)
		m.Root, m.MaxModelLen = l.cfg.Models[0], &l.cfg.Core.MaxModelLen
		list = append(list, m)
	}
	for _, of := range l.adapters.all() {
		m := card(of.name)
		m.Root, m.Parent = of.path, &l.cfg.Models[0]
		list = append(list, m)
	}
	c.replyNulls(struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", list})
}
