package vllm

// field is one field of an event; zero is one that is not known.
type field uint8

const (
	unknownField field = iota
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldMedium
	fieldLoraName
	fieldExtraKeys
	fieldGroup
	fieldKind
	fieldWindow
	fieldLocality
	fieldLookahead
	fieldAside // known and of no use here
)

// storedOrder and removedOrder are the positions after the tag in the array encoding. Releases
// only ever appended to them; fields that the map encoding added since follow in the same order.
var (
	storedOrder = [...]field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium, fieldLoraName,
		fieldExtraKeys, fieldGroup, fieldKind, fieldWindow, fieldLocality, fieldAside, fieldAside, fieldLookahead,
	}
	removedOrder = [...]field{fieldHashes, fieldMedium, fieldGroup, fieldLocality, fieldAside}
)

func fieldAt(op Op, position int) field {
	order := storedOrder[:]
	switch op {
	case OpRemoved:
		order = removedOrder[:]
	case OpCleared:
		order = nil
	case OpStored:
	}
	if position > len(order) {
		return unknownField
	}
	return order[position-1]
}

func fieldNamed(key []byte) field {
	switch string(key) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoraID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoraName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldKind
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "lookahead_token_ids":
		return fieldLookahead
	case "ownership", "session_id": // which tier holds it, and for which session it was stored
		return fieldAside
	}
	return unknownField
}
