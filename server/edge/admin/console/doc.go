// Package console is the operators' page: the work of the fleet, where requests went and why.
//
// Handler serves the embedded page; nothing is loaded from anywhere else. The page reads the contract's RPCs under their REST
// paths, on the listener that it came from. It changes nothing, and its dry runs book nothing.
package console
