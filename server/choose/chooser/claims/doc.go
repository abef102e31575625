// Package claims names the call of each request in the ledger of programs, and books the memory that its program claims on a rank.
package claims
