-- Asks kvpilot which replica should answer a request, and reports the outcome to it. The
-- request itself goes straight from HAProxy to the replica.
--
-- In haproxy.cfg:  lua-load kvpilot.lua
--   http-request         lua.kvpilot_choose       sets txn.kvpilot_host and txn.kvpilot_port, or answers itself
--   filter               lua.kvpilot              reports the first token and the end, also of a request whose client left
--   http-after-response  set-var(txn.kvpilot_status) status
-- Environment of HAProxy:
--   KVPILOT_ASK         the frontend of this HAProxy that leads to kvpilot (haproxy.cfg has a default)
--   KVPILOT_API_KEY     the proxy's own key, when kvpilot requires keys, with the roles route and gateway. Clients' keys then need
--                       the role infer only; without it a client's own key is used for the choice and needs the role route
--   KVPILOT_TIMEOUT_MS  how long a request may wait for its choice (default 600000, as kvpilot's chooser.queue.max_wait)
--   KVPILOT_LEASE_MS    how soon the bookings of a HAProxy that died end by themselves (default 6000)

local ask = os.getenv("KVPILOT_ASK") or "abns@kvpilot-ask"
local key = os.getenv("KVPILOT_API_KEY")
if key == "" then
  key = nil
end
local timeout = tonumber(os.getenv("KVPILOT_TIMEOUT_MS") or "600000")
local lease = tonumber(os.getenv("KVPILOT_LEASE_MS") or "6000")

-- How long a report may take; what is lost is made up for by the next one, or by the lease.
local report_timeout = 5000

-- The client's headers that kvpilot reads, apart from its credentials.
local passed = {
  "x-request-id", "x-vllm-priority", "traceparent",
  "x-kvpilot-policy", "x-kvpilot-weights", "x-kvpilot-allow", "x-kvpilot-deny", "x-kvpilot-pin",
  -- Targets and the objective.
  "x-kvpilot-objective",
  "x-kvpilot-ttft-ms", "x-kvpilot-tpot-ms", "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tpot-ms",
  -- Sessions: router.session_header and router.session_headers.
  "x-session-id", "x-claude-code-session-id", "x-claude-code-agent-id", "thread-id", "session-id", "session_id", "conversation-id", "conversation_id",
  "x-session-affinity", "x-opencode-session", "x-dynamo-session-id", "x-litellm-session-id", "x-aibrix-session-key", "x-amp-thread-id", "helicone-session-id",
  "x-kvpilot-session-final", "x-dynamo-session-final", "x-kvpilot-session-return-ms",
}

-- The bookings of requests under way: how many pieces of the answer have passed, which is at most the
-- number of tokens.
local live = {}
local owners = {} -- the tenant of each booking

local function text(answer, name)
  return answer:match('"' .. name .. '"%s*:%s*"([^"\\]*)"')
end

-- refuse ends the request with an answer in the API's form.
local function refuse(txn, message)
  local reply = txn:reply({ status = 503, reason = "Service Unavailable" })
  reply:add_header("content-type", "application/json")
  reply:add_header("x-kvpilot-reason", "ROUTER_UNREACHABLE")
  reply:add_header("retry-after", "1")
  if txn.sf:path():find("/v1/messages", 1, true) == 1 then
    reply:set_body('{"type":"error","error":{"type":"overloaded_error","message":"' .. message .. '"}}')
  else
    reply:set_body('{"error":{"message":"' .. message .. '","type":"server_error","param":null,"code":"router_unreachable"}}')
  end
  txn:done(reply)
end

-- pass ends the request with kvpilot's own answer: its status and body reach the client.
local function pass(txn, res)
  local reply = txn:reply({ status = res.status })
  for _, name in ipairs({ "content-type", "retry-after", "retry-after-ms", "www-authenticate", "x-request-id", "x-kvpilot-reason" }) do
    if res.headers and res.headers[name] then
      for _, value in pairs(res.headers[name]) do
        reply:add_header(name, value)
      end
    end
  end
  reply:set_body(res.body or "")
  txn:done(reply)
end

-- identify adds the credentials to the headers of a question: the proxy's own, which shows the client's, or the client's alone.
local function identify(txn, headers)
  local authorization, client = txn.sf:req_hdr("authorization") or "", txn.sf:req_hdr("x-api-key") or ""
  local bearer = authorization:lower():find("bearer ", 1, true) == 1
  if key then
    headers["authorization"] = { "Bearer " .. key }
    headers["x-kvpilot-client-credential"] = { bearer and authorization or "Bearer " .. client }
  elseif bearer then
    headers["authorization"] = { authorization }
  elseif client ~= "" then
    headers["x-api-key"] = { client }
  end
end

core.register_action("kvpilot_choose", { "http-req" }, function(txn)
  local body = txn.sf:req_body() or ""
  local headers = { ["content-type"] = { "application/json" }, ["x-kvpilot-path"] = { txn.sf:path() }, ["x-kvpilot-lease-ms"] = { tostring(lease) }, ["x-kvpilot-reports"] = { "all" } }
  for _, name in ipairs(passed) do
    local value = txn.sf:req_hdr(name)
    if value and value ~= "" then
      headers[name] = { value }
    end
  end
  identify(txn, headers)
  local whole = tonumber(txn.sf:req_hdr("content-length") or "")
  if not whole then -- it comes in chunks: what is here may be its beginning
    headers["x-body-truncated"] = { tostring(#body) }
  elseif #body < whole then
    headers["x-body-truncated"] = { #body .. "/" .. whole }
  end
  local res = core.httpclient():post({ url = "http://localhost/v1/route:choose", dst = ask, headers = headers, body = body, timeout = timeout })
  local kind = res and res.headers and res.headers["content-type"] and res.headers["content-type"][0] or ""
  if not res or not res.status or not kind:find("application/json", 1, true) then
    return refuse(txn, "the router cannot be reached")
  end
  if res.status ~= 200 then
    return pass(txn, res)
  end
  local host, port = text(res.body, "host"), res.body:match('"port"%s*:%s*(%d+)')
  if not host or not port then
    return refuse(txn, "the router's answer cannot be read")
  end
  txn:set_var("txn.kvpilot_host", host)
  txn:set_var("txn.kvpilot_port", tonumber(port))
  txn:set_var("txn.kvpilot_replica", text(res.body, "replica_id") or "")
  local reservation = text(res.body, "reservation_id")
  if reservation and reservation ~= "" then
    live[reservation] = 0
    owners[reservation] = text(res.body, "tenant")
    txn:set_var("txn.kvpilot_reservation", reservation)
  end
  local extra = res.body:match('"request_headers"%s*:%s*(%b{})')
  if extra then
    for name, value in extra:gmatch('"([^"\\]+)"%s*:%s*"([^"\\]*)"') do
      txn.http:req_set_header(name, value)
    end
  end
end, 0)

-- post sends reports, one JSON object per line.
local function post(path, body, owner)
  local headers = { ["content-type"] = { "application/x-ndjson" } }
  if key then
    headers["authorization"] = { "Bearer " .. key }
    if owner and owner ~= "" then
      headers["x-kvpilot-tenant"] = { owner }
    end
  end
  core.httpclient():post({ url = "http://localhost" .. path, dst = ask, headers = headers, body = body, timeout = report_timeout })
end

-- report sends a report on a booking to kvpilot, asynchronously.
local function report(reservation, body)
  local owner = owners[reservation]
  core.register_task(function()
    post("/kvpilot/v1/reservations/" .. reservation .. ":report", body, owner)
  end)
end

-- Every third of a lease, one report for all bookings says how far they are, so that leases can be short
-- however long the answers are.
core.register_task(function()
  local most = 500 -- reports in one request: HAProxy's buffer holds it whole
  while true do
    core.msleep(math.max(100, lease // 3))
    local now = {} -- by tenant; a copy, since live changes while reports are under way
    for reservation, pieces in pairs(live) do
      local owner = owners[reservation] or ""
      now[owner] = now[owner] or {}
      now[owner][reservation] = pieces
    end
    for owner, bookings in pairs(now) do
      local lines, n = {}, 0
      local function flush()
        if n > 0 then
          post("/kvpilot/v1/reservations:track", table.concat(lines, "\n"), owner)
          lines, n = {}, 0
        end
      end
      for reservation, pieces in pairs(bookings) do
        n = n + 1
        if pieces > 0 then
          lines[n] = string.format('{"reservation_id":"%s","progress":{"output_tokens":%d}}', reservation, pieces)
        else
          lines[n] = string.format('{"reservation_id":"%s","renew":{}}', reservation)
        end
        if n == most then
          flush()
        end
      end
      flush()
    end
  end
end)

local Life = {}
Life.id = "kvpilot: life of a booking"
Life.flags = filter.FLT_CFG_FL_HTX
Life.__index = Life

function Life:new()
  return setmetatable({ streamed = false, complete = false, left = false }, Life)
end

function Life:start_analyze(txn, chn)
  if chn:is_resp() then
    filter.register_data_filter(self, chn)
  end
end

-- reservation is this request's booking; nil when there is none, or none any more.
function Life:reservation(txn)
  local id = txn:get_var("txn.kvpilot_reservation")
  if id and id ~= "" and live[id] then
    return id
  end
end

function Life:http_headers(txn, msg)
  if msg.channel:is_resp() then
    local kind = msg:get_headers()["content-type"]
    self.streamed = kind ~= nil and kind[0] ~= nil and kind[0]:find("text/event-stream", 1, true) == 1
  end
end

-- The head of a stream comes before its first token, which comes with the first piece. HAProxy 2.6 calls
-- this also without anything new. What it does not change continues.
function Life:http_payload(txn, msg)
  if not self.streamed or not msg.channel:is_resp() or msg:input() == 0 then
    return
  end
  local reservation = self:reservation(txn)
  if not reservation then
    return
  end
  live[reservation] = live[reservation] + 1
  if live[reservation] == 1 then
    report(reservation, '{"first_token":{}}')
  end
end

function Life:http_end(txn, msg)
  if msg.channel:is_resp() then
    self.complete = true
    self:release(txn)
  end
end

-- Every way out ends here: a client that left, a replica that could not be reached or died, a timeout.
function Life:end_analyze(txn, chn)
  self.left = self.left or not chn:is_resp() and not chn:may_recv()
  self:release(txn)
end

function Life:release(txn)
  local reservation = self:reservation(txn)
  if not reservation then
    return
  end
  live[reservation] = nil
  local how = "FAILED" -- the replica ended an answer that is not whole
  local status = txn:get_var("txn.kvpilot_status") or 0
  if status >= 500 then
    how = "FAILED"
  elseif status >= 400 then
    how = "REJECTED"
  elseif self.complete then
    how = "COMPLETED"
  elseif self.left then
    how = "CANCELED"
  end
  report(reservation, '{"release":{"reason":"RELEASE_REASON_' .. how .. '"}}')
  owners[reservation] = nil
end

core.register_filter("kvpilot", Life, function(self, args)
  return self
end)
