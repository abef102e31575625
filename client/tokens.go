package client

import (
	"context"
	"fmt"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// Tokenize returns the ids that the model's replicas use for a plain prompt.
func (c *Client) Tokenize(ctx context.Context, model, text string) ([]uint32, error) {
	return c.tokenize(ctx, &kvpilotv1.TokenizeRequest{Model: model, Input: &kvpilotv1.TokenizeRequest_Text{Text: text}})
}

// TokenizeBody returns the ids for an inference request, chat template and all. The body names
// the model.
func (c *Client) TokenizeBody(ctx context.Context, body []byte) ([]uint32, error) {
	return c.tokenize(ctx, &kvpilotv1.TokenizeRequest{Input: &kvpilotv1.TokenizeRequest_Body{Body: &kvpilotv1.RequestBody{Json: body}}})
}

func (c *Client) tokenize(ctx context.Context, req *kvpilotv1.TokenizeRequest) ([]uint32, error) {
	resp, err := c.routing.Tokenize(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(resp.GetSequences()) != 1 {
		return nil, fmt.Errorf("the router answered %d sequences for one input", len(resp.GetSequences()))
	}
	return resp.GetSequences()[0].GetTokenIds().GetIds(), nil
}

// Detokenize returns the text of ids.
func (c *Client) Detokenize(ctx context.Context, model string, ids []uint32) (string, error) {
	resp, err := c.routing.Detokenize(ctx, &kvpilotv1.DetokenizeRequest{Model: model, Sequences: []*kvpilotv1.TokenIds{{Ids: ids}}})
	if err != nil {
		return "", err
	}
	if len(resp.GetTexts()) != 1 {
		return "", fmt.Errorf("the router answered %d texts for one sequence", len(resp.GetTexts()))
	}
	return resp.GetTexts()[0], nil
}
