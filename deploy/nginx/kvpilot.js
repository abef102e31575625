// Asks kvpilot which replica should answer a request; nginx then streams straight from that replica.
// kvpilot.conf next to this file says how it is used. Needs njs 0.7 or later.

// How many characters of a body kvpilot sees. Of a longer one, the beginning decides.
const SEEN = 256 * 1024;

// The headers of kvpilot's own answers that clients should see.
const PASSED = ['content-type', 'retry-after', 'retry-after-ms', 'www-authenticate', 'x-request-id', 'x-kvpilot-reason'];

// nginx's own errors, by the location to which kvpilot.conf sends them: status, message, kvpilot's reason, and the error's type in
// OpenAI's API and in Anthropic's.
const FAILURES = {
    'invalid': [400, 'the request is not valid HTTP', 'INVALID_BODY', 'invalid_request_error', 'invalid_request_error'],
    'too-large': [413, 'the body is larger than client_max_body_size of the proxy', 'BODY_TOO_LARGE', 'invalid_request_error', 'request_too_large'],
    'internal': [500, 'internal error', 'INTERNAL', 'server_error', 'api_error'],
    'no-router': [503, 'the router cannot be reached', 'ROUTER_UNREACHABLE', 'server_error', 'overloaded_error'],
    'unreadable': [503, "the router's answer cannot be read", 'ROUTER_UNREACHABLE', 'server_error', 'overloaded_error'],
    'no-replica': [502, 'the replica cannot be reached, or did not answer', 'UPSTREAM_UNREACHABLE', 'server_error', 'api_error'],
    'late': [504, 'the replica did not answer in time', 'DEADLINE_EXCEEDED', 'server_error', 'api_error'],
};

async function route(r) {
    let body;
    try {
        body = r.requestText || '';
    } catch (e) { // larger than client_body_buffer_size: it is in a file that the script cannot open
        r.internalRedirect('@kvpilot');
        return;
    }
    r.variables.kvpilot_path = r.uri;
    if (body.length > SEEN) {
        r.variables.kvpilot_truncated = SEEN + '/' + body.length;
        body = body.slice(0, SEEN);
    }
    // nginx cannot send a script's body a second time ("writev() failed (14: Bad address)"), so the script asks again where a router died with it.
    let answer, kind;
    for (let tries = 0; tries < 3; tries++) {
        answer = await r.subrequest('/-/kvpilot/choose', { method: 'POST', body: body });
        kind = answer.headersOut['Content-Type'] || '';
        if (answer.status < 502 || kind.indexOf('application/json') === 0 && answer.headersOut['X-Kvpilot-Reason'] !== 'ROUTER_UNREACHABLE') {
            break;
        }
    }
    if (kind.indexOf('application/json') !== 0) { // nginx's own error: there was no answer
        refuse(r, 'no-router');
        return;
    }
    if (answer.status !== 200) { // the true status, for the client
        PASSED.forEach((name) => {
            if (answer.headersOut[name]) {
                r.headersOut[name] = answer.headersOut[name];
            }
        });
        r.return(answer.status, answer.responseText);
        return;
    }
    let choice;
    try {
        choice = JSON.parse(answer.responseText);
    } catch (e) {
        refuse(r, 'unreadable');
        return;
    }
    const host = choice.host.indexOf(':') < 0 ? choice.host : '[' + choice.host + ']';
    r.variables.kvpilot_replica_address = host + ':' + choice.port;
    r.variables.kvpilot_replica = choice.replica_id;
    r.variables.kvpilot_reservation = choice.reservation_id;
    r.variables.kvpilot_tenant = choice.tenant || '';
    r.variables.kvpilot_request_id = choice.request_headers['x-request-id'] || '';
    r.variables.kvpilot_rank = choice.request_headers['x-data-parallel-rank'] || '';
    r.internalRedirect('@replica');
}

// follow passes an answer on and notes that its end came: nginx itself ends an answer that its replica broke off like any other.
function follow(r, data, flags) {
    r.sendBuffer(data, flags);
    if (flags.last) {
        r.variables.kvpilot_complete = '1';
    }
}

// fail answers one of nginx's own errors; the location's last part names it.
function fail(r) {
    refuse(r, r.uri.slice(r.uri.lastIndexOf('/') + 1));
}

// refuse ends the request with an answer in the API's form.
function refuse(r, name) {
    const failure = FAILURES[name] || FAILURES.internal;
    const status = failure[0], message = failure[1], reason = failure[2];
    r.headersOut['Content-Type'] = 'application/json';
    r.headersOut['X-Kvpilot-Reason'] = reason;
    if (status >= 502) {
        r.headersOut['Retry-After'] = '1';
    }
    r.headersOut['X-Request-Id'] = r.variables.kvpilot_request_id || r.headersIn['X-Request-Id'] || r.variables.request_id;
    if (r.variables.request_uri.indexOf('/v1/messages') === 0) {
        r.return(status, JSON.stringify({ type: 'error', error: { type: failure[4], message: message } }));
        return;
    }
    r.return(status, JSON.stringify({ error: { message: message, type: failure[3], param: null, code: reason.toLowerCase() } }));
}

export default { route, follow, fail };
