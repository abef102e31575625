// Package answers learns how long the answers of a model are, by tenant, and how long a rank decodes them.
package answers
