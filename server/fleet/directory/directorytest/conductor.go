package directorytest

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// Match is the part of a prompt that one rank has, in tokens: on its GPU, continued by host memory, continued by disks.
type Match struct {
	GPU  int `json:"gpu"`
	CPU  int `json:"cpu"`
	Disk int `json:"disk"`
}

// Conductor is a conductor of Mooncake. The zero value knows nothing.
type Conductor struct {
	// Older answers as versions without rank_matches do: instances below the tenant's name, members in capitals.
	Older bool

	mu    sync.Mutex
	known []knownPrefix // guarded by mu
	asked []QueryFields // guarded by mu
}

// QueryFields are the fields of a question.
type QueryFields struct {
	Model, Tenant, Lora, Salt string
	BlockSize                 int
	IDs                       []uint32
}

type knownPrefix struct {
	of       QueryFields
	instance string
	ranks    []Match
}

// Put has the ranks of an instance hold parts of a prompt. A question must have the same fields, and a prompt that begins with these ids.
func (s *Conductor) Put(of QueryFields, instance string, ranks ...Match) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = append(s.known, knownPrefix{of, instance, ranks})
}

// Asked returns the questions so far.
func (s *Conductor) Asked() []QueryFields {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// ServeHTTP implements http.Handler.
func (s *Conductor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/query":
		http.Error(w, "Not Found", http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		http.Error(w, "Method not allowed", http.StatusMethodNotAllowed)
		return
	}
	text, err := io.ReadAll(r.Body)
	var body map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, map[string]string{"error": "Invalid JSON object", "reason": "invalid_json"})
		return
	}
	in, field := readQuery(body)
	if field != "" {
		reply(w, http.StatusBadRequest, map[string]string{"error": "unusable: " + field, "reason": "invalid_value", "field": field})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, in)
	reply(w, http.StatusOK, s.answer(&in))
}

// readQuery reads the fields of a question, and names one that the conductor refuses; empty for none.
func readQuery(body map[string]json.RawMessage) (in QueryFields, field string) {
	for name := range body {
		if !slices.Contains([]string{"block_size", "cache_salt", "instance_id", "lora_name", "model", "tenant_id", "token_ids"}, name) {
			return in, name
		}
	}
	in.Tenant = "default"
	for name, into := range map[string]any{"model": &in.Model, "tenant_id": &in.Tenant, "lora_name": &in.Lora, "cache_salt": &in.Salt, "block_size": &in.BlockSize, "token_ids": &in.IDs} {
		if raw, ok := body[name]; ok && json.Unmarshal(raw, into) != nil {
			return in, name
		}
	}
	switch {
	case in.Model == "":
		return in, "model"
	case in.BlockSize <= 0:
		return in, "block_size"
	case body["token_ids"] == nil || slices.ContainsFunc(in.IDs, func(id uint32) bool { return id > math.MaxInt32 }):
		return in, "token_ids"
	}
	return in, ""
}

// answer finds the instances that hold a part of the prompt.
func (s *Conductor) answer(in *QueryFields) any {
	instances := map[string]any{}
	for _, k := range s.known {
		if k.of.Model != in.Model || k.of.Tenant != in.Tenant || k.of.Lora != in.Lora || k.of.Salt != in.Salt || k.of.BlockSize != in.BlockSize ||
			len(in.IDs) < len(k.of.IDs) || !slices.Equal(in.IDs[:len(k.of.IDs)], k.of.IDs) {
			continue
		}
		best, gpus, matches := Match{}, map[string]int{}, map[string]Match{}
		for i, m := range k.ranks {
			best = Match{GPU: max(best.GPU, m.GPU), CPU: max(best.CPU, m.CPU), Disk: max(best.Disk, m.Disk)}
			gpus[strconv.Itoa(i)], matches[strconv.Itoa(i)] = m.GPU, m
		}
		if s.Older {
			instances[k.instance] = map[string]any{"longest_matched": best.Disk, "DP": gpus, "GPU": best.GPU, "CPU": best.CPU, "DISK": best.Disk}
			continue
		}
		instances[k.instance] = map[string]any{
			"longest_matched": best.Disk, "dp": gpus, "rank_matches": matches, "gpu": best.GPU, "cpu": best.CPU, "disk": best.Disk,
		}
	}
	if s.Older {
		return map[string]any{in.Tenant: instances}
	}
	return map[string]any{"instances": instances}
}
