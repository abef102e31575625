package router

const (
	HeaderChoice  = headerChoice
	HeaderOverlap = headerOverlap
	HeaderReplica = headerReplica
	HeaderAdapter = headerAdapter
	HeaderResume  = headerResume
)
