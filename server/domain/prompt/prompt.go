package prompt

// Kind is the shape of a prompt.
type Kind uint8

// The shapes.
const (
	// KindNone: the body holds nothing that could be tokenized; the request is balanced by load.
	KindNone Kind = iota
	// KindText: one string.
	KindText
	// KindIDs: token ids given by the client.
	KindIDs
	// KindChat: a list of messages.
	KindChat
	// KindBatch: several strings; Texts has them all, and the first one is the routing key.
	KindBatch
	// KindBatchIDs: several lists of token ids; Batch has them all, the first is the routing key.
	KindBatchIDs
)

// String gives the kind in the form that metrics and JSON use.
func (k Kind) String() string {
	switch k {
	case KindNone:
		return "none"
	case KindText:
		return "text"
	case KindIDs:
		return "ids"
	case KindChat:
		return "chat"
	case KindBatch:
		return "batch"
	case KindBatchIDs:
		return "batch_ids"
	}
	return "unknown"
}

// API is the client-facing format that a body is written in.
type API uint8

// The formats.
const (
	APIOther API = iota
	APIChat
	APICompletions
	APIResponses
	APIMessages
)

// Prompt holds all that decides a request's token ids.
type Prompt struct {
	Kind Kind
	API  API
	// Model is the name that the engine knows (after aliases), base model or adapter.
	Model string
	// Adapter is the LoRA adapter's name when Model is one, else empty. Salt is the cache_salt.
	// Neither changes the ids; both are part of a block's identity.
	Adapter string
	Salt    string
	// Apart keeps the memory of the prompt apart from the memory of equal prompts with another value.
	Apart string

	// Body is the whole request body as the client sent it.
	Body []byte
	// Digest names Body and its route, when it is known; two prompts of one digest differ in Model,
	// Adapter and Salt at most. A change of any other field must clear it.
	Digest Digest
	// Text is the prompt (KindText) or the first of a batch, decoded from JSON.
	Text  string
	Texts []string
	// IDs are the token ids (KindIDs) or the first list of a batch.
	IDs   []uint32
	Batch [][]uint32
	// Messages are the raw JSON values of the messages, in order (KindChat).
	Messages [][]byte
	// HasMedia is set when any message has a part that is not text.
	HasMedia bool
	// Fields are the other top-level members that may change the ids, in the order of the body:
	// tools, chat_template, chat_template_kwargs, add_generation_prompt, ... Values are raw JSON.
	Fields []Field
	// Truncate is truncate_prompt_tokens: 0 when absent, -1 for the model's limit.
	Truncate int
	// Partial is set when only a prefix of the body was at hand: Text, IDs and Messages hold the part before the cut,
	// and the true prompt is longer.
	Partial bool
}

// Digest is a hash of a request body; the zero value is none. It means nothing outside the process.
type Digest struct{ Hi, Lo uint64 }

// String gives the format's name in the form that metrics and JSON use.
func (a API) String() string {
	switch a {
	case APIChat:
		return "chat"
	case APICompletions:
		return "completions"
	case APIResponses:
		return "responses"
	case APIMessages:
		return "messages"
	case APIOther:
	}
	return "other"
}

// Field is one top-level member of a body.
type Field struct {
	Name  string
	Value []byte
}

// Field returns the raw value of the member called name, or nil.
func (p *Prompt) Field(name string) []byte {
	for _, f := range p.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}
