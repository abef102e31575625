// Package ranks has this router's picture of the engines' ranks, and keeps its parts in step: the registry lists the ranks, the event
// feeds fill the index with their blocks, enginestats reads their metrics, and the book counts the requests sent to them.
//
// New makes these parts; the owner runs each. Join adds the parts that follow the ranks, before anything runs. The registry reports
// changes in order: before a snapshot shows an addition, and after one stopped showing a removal. Ranks is safe for concurrent use
// and owns no goroutine.
package ranks
