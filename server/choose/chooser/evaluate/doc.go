// Package evaluate finds all that is known of the ranks for one request: the candidates with their vetoes, the part of the prompt that each holds,
// its load and speed. From that an Evaluation chooses. It books nothing; a Model has all that is remembered of the requests for one model.
//
// An Evaluator has the parts that it asks, an Evaluation the state of one request; its memory is reused: Borrow takes one, GiveBack returns it.
package evaluate
