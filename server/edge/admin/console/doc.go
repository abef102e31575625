// Package console is the operators' page: what the fleet does, where requests went and why.
//
// Handler serves one embedded page and the JSON that it shows; nothing is loaded from anywhere
// else. The state is computed at most once a second, for any number of viewers. What it shows comes
// through Source; it changes nothing, and its dry runs book nothing. History counts outcomes as
// they come, in constant memory; it is safe for concurrent use.
package console
