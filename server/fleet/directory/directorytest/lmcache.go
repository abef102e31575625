package directorytest

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Placement is where a chunk lies.
type Placement struct {
	Instance string `json:"instance_id"`
	// Incarnation counts the processes of the instance.
	Incarnation int    `json:"incarnation"`
	Tier        string `json:"tier"`
	Backend     string `json:"backend"`
	Size        int    `json:"size_bytes"`
	Shared      bool   `json:"shared"`
}

// LMCache is a coordinator. The zero value has chunks of 256 tokens and knows nothing.
type LMCache struct {
	mu     sync.Mutex
	placed map[string][]Placement // by chunk, model, salt and rank; guarded by mu
	asked  [][]uint32             // guarded by mu
}

const chunkTokens = 256

type lookupRequest struct {
	Keys      []json.RawMessage `json:"keys"`
	TokenIDs  []uint32          `json:"token_ids"`
	Model     string            `json:"model_name"`
	WorldSize *int              `json:"world_size"`
	Salt      string            `json:"cache_salt"`
}

type encodedKey struct {
	Chunk string `json:"chunk_hash_hex"`
	Model string `json:"model_name"`
	Rank  int    `json:"kv_rank"`
	Group int    `json:"object_group_id"`
	Salt  string `json:"cache_salt"`
}

type lookupResult struct {
	Key        encodedKey  `json:"key"`
	Placements []Placement `json:"placements"`
	TokenIDs   []uint32    `json:"token_ids"`
	Accesses   int         `json:"access_count"`
}

type lookupResponse struct {
	Chunks  int            `json:"chunks"`
	Results []lookupResult `json:"results"`
}

// Put places the first chunks of a prompt: one key for each of world ranks.
func (s *LMCache) Put(model, salt string, world int, ids []uint32, chunks int, at Placement) {
	for rank := range world {
		s.PutRank(model, salt, rank, ids, chunks, at)
	}
}

// PutRank places one rank's part of the first chunks of a prompt.
func (s *LMCache) PutRank(model, salt string, rank int, ids []uint32, chunks int, at Placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.placed == nil {
		s.placed = map[string][]Placement{}
	}
	for _, chunk := range chunksOf(ids)[:chunks] {
		key := placeKey(encodedKey{Chunk: chunk, Model: model, Rank: rank, Salt: salt})
		s.placed[key] = append(s.placed[key], at)
	}
}

// Asked returns the token ids of the questions so far.
func (s *LMCache) Asked() [][]uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// ServeHTTP implements http.Handler.
func (s *LMCache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/directory/lookup" {
		reply(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
		return
	}
	if r.Method != http.MethodPost {
		reply(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
		return
	}
	var in lookupRequest
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &in)
	}
	world := 1
	if in.WorldSize != nil {
		world = *in.WorldSize
	}
	switch {
	case err != nil, (len(in.Keys) > 0) == (len(in.TokenIDs) > 0), len(in.TokenIDs) > 0 && in.Model == "", world < 1:
		reply(w, http.StatusUnprocessableEntity, map[string]any{"detail": []any{}})
		return
	case len(in.TokenIDs) > 1_000_000, strings.ContainsAny(in.Salt, "@/"):
		reply(w, http.StatusBadRequest, map[string]string{"detail": "too many token_ids in a single request"})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, in.TokenIDs)
	chunks := chunksOf(in.TokenIDs)
	out := lookupResponse{Chunks: len(chunks), Results: []lookupResult{}}
	for i, chunk := range chunks {
		for rank := range world {
			one := lookupResult{Key: encodedKey{Chunk: chunk, Model: in.Model, Rank: rank, Salt: in.Salt}, Placements: []Placement{}, TokenIDs: []uint32{}}
			if at := s.placed[placeKey(one.Key)]; len(at) > 0 {
				one.Placements, one.TokenIDs = at, in.TokenIDs[i*chunkTokens:(i+1)*chunkTokens]
			}
			out.Results = append(out.Results, one)
		}
	}
	reply(w, http.StatusOK, out)
}

func placeKey(k encodedKey) string {
	text, _ := json.Marshal(k)
	return string(text)
}

// chunksOf names the whole chunks of a prompt: each name depends on all tokens up to the chunk's end.
func chunksOf(ids []uint32) (names []string) {
	var before []byte
	for ; len(ids) >= chunkTokens; ids = ids[chunkTokens:] {
		text := slices.Clone(before)
		for _, id := range ids[:chunkTokens] {
			text = binary.LittleEndian.AppendUint32(text, id)
		}
		sum := sha256.Sum256(text)
		before = sum[:]
		names = append(names, hex.EncodeToString(before))
	}
	return names
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}
