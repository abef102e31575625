// Asks kvpilot which replica should answer a request; nginx then streams straight from that replica.
// kvpilot.conf next to this file says how it is used. Needs njs 0.7 or later.

// How many characters of a body kvpilot sees. Of a longer one, the beginning decides.
const SEEN = 256 * 1024;

// The headers of kvpilot's own answers that clients should see.
const PASSED = ['content-type', 'retry-after', 'x-request-id', 'x-kvpilot-reason'];

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
    const answer = await r.subrequest('/-/kvpilot/choose', { method: 'POST', body: body });
    const kind = answer.headersOut['Content-Type'] || '';
    if (kind.indexOf('application/json') !== 0) { // nginx's own error: there was no answer
        refuse(r, 'the router cannot be reached');
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
        refuse(r, "the router's answer cannot be read");
        return;
    }
    const host = choice.host.indexOf(':') < 0 ? choice.host : '[' + choice.host + ']';
    r.variables.kvpilot_replica_address = host + ':' + choice.port;
    r.variables.kvpilot_replica = choice.replica_id;
    r.variables.kvpilot_reservation = choice.reservation_id;
    r.variables.kvpilot_request_id = choice.request_headers['x-request-id'] || '';
    r.variables.kvpilot_rank = choice.request_headers['x-data-parallel-rank'] || '';
    r.internalRedirect('@replica');
}

// refuse ends the request with an answer in OpenAI's shape.
function refuse(r, message) {
    r.headersOut['Content-Type'] = 'application/json';
    r.headersOut['Retry-After'] = '1';
    r.headersOut['X-Kvpilot-Reason'] = 'router_unreachable';
    r.return(503, JSON.stringify({ error: { message: message, type: 'server_error', param: null, code: 'router_unreachable' } }));
}

export default { route };
