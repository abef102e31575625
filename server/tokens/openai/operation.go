package openai

// Operation is the route in the words of OpenTelemetry's conventions, where they have one.
func (r Route) Operation() string {
	switch r {
	case RouteChat, RouteResponses, RouteMessages:
		return "chat"
	case RouteCompletions:
		return "text_completion"
	default:
		return r.String()
	}
}
