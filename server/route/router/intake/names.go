package intake

// HeaderResume is "off" for a stream that must not be resumed on another replica, "carry" for one whose client keeps its events, with the
// ids, and "continue" for the request of such a client to continue a stream which another router has begun.
const HeaderResume = "X-Kvpilot-Resume"
