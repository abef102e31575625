package router

const (
	HeaderChoice  = headerChoice
	HeaderOverlap = headerOverlap
	HeaderReplica = headerReplica
	HeaderAdapter = headerAdapter
	HeaderResume  = headerResume
)

// NewID makes the id of a request.
func NewID(origin string) string { return newID(origin) }
