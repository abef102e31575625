// Package waiting has the requests that wait in the router: programs for memory, and then all for room on a rank. A Line has the requests for one model.
// A Room joins the lines, places the requests that arrive, and visits the waiting ones when something has changed or their time has come.
package waiting
