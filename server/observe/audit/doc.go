// Package audit records the callers and their actions on the router: changes of the fleet and the settings, refused credentials, and
// reads of other tenants' data, as JSON lines. Events never hold prompts or credentials.
//
// Log.Write does not wait: an event that the disk does not take in time is counted and lost. Refusals and reads, which
// callers can cause at will, are bounded; omitted ones are counted in the next event of the kind.
package audit
