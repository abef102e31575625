-- Asks kvpilot which replica should answer a request, and tells it when the answer begins and
-- ends. The request then goes straight from HAProxy to the replica.
--
-- In haproxy.cfg:  lua-load kvpilot.lua
--   http-request  lua.kvpilot_choose            sets txn.kvpilot_host and txn.kvpilot_port, or answers itself
--   filter        lua.kvpilot                   reports first byte and end
-- Environment of HAProxy: KVPILOT_URL (default http://127.0.0.1:8080), KVPILOT_TIMEOUT_MS (default 5000),
-- KVPILOT_LEASE_MS (default 600000: a booking of which nobody hears any more ends by itself).

local base = os.getenv("KVPILOT_URL") or "http://127.0.0.1:8080"
local timeout = tonumber(os.getenv("KVPILOT_TIMEOUT_MS") or "5000")
local lease = os.getenv("KVPILOT_LEASE_MS") or "600000"

-- The client's headers that kvpilot reads.
local passed = { "authorization", "x-api-key", "x-request-id", "x-session-id", "x-vllm-priority", "x-kvpilot-policy", "x-kvpilot-allow", "x-kvpilot-deny", "traceparent" }

local function text(answer, name)
  return answer:match('"' .. name .. '"%s*:%s*"([^"\\]*)"')
end

-- refuse ends the request with an answer in OpenAI's shape.
local function refuse(txn, status, reason, message)
  local reply = txn:reply({ status = status, reason = reason })
  reply:add_header("content-type", "application/json")
  reply:add_header("x-kvpilot-reason", "router_unreachable")
  if status == 503 then
    reply:add_header("retry-after", "1")
  end
  reply:set_body('{"error":{"message":"' .. message .. '","type":"server_error","param":null,"code":"router_unreachable"}}')
  txn:done(reply)
end

-- pass ends the request with kvpilot's own answer: its status and body reach the client.
local function pass(txn, res)
  local reply = txn:reply({ status = res.status })
  for _, name in ipairs({ "content-type", "retry-after", "x-request-id", "x-kvpilot-reason" }) do
    if res.headers and res.headers[name] then
      for _, value in pairs(res.headers[name]) do
        reply:add_header(name, value)
      end
    end
  end
  reply:set_body(res.body or "")
  txn:done(reply)
end

core.register_action("kvpilot_choose", { "http-req" }, function(txn)
  local body = txn.sf:req_body() or ""
  local headers = { ["content-type"] = { "application/json" }, ["x-kvpilot-path"] = { txn.sf:path() }, ["x-kvpilot-lease-ms"] = { lease } }
  for _, name in ipairs(passed) do
    local value = txn.sf:req_hdr(name)
    if value and value ~= "" then
      headers[name] = { value }
    end
  end
  local whole = tonumber(txn.sf:req_hdr("content-length") or "")
  if whole and #body < whole then
    headers["x-body-truncated"] = { #body .. "/" .. whole }
  end
  local client = core.httpclient()
  local res = client:post({ url = base .. "/v1/route:choose", headers = headers, body = body, timeout = timeout })
  local kind = res and res.headers and res.headers["content-type"] and res.headers["content-type"][0] or ""
  if not res or not res.status or not kind:find("application/json", 1, true) then -- HAProxy's own word that nobody answered
    return refuse(txn, 503, "Service Unavailable", "the router cannot be reached")
  end
  if res.status ~= 200 then
    return pass(txn, res)
  end
  local host, port = text(res.body, "host"), res.body:match('"port"%s*:%s*(%d+)')
  if not host or not port then
    return refuse(txn, 503, "Service Unavailable", "the router's answer cannot be read")
  end
  txn:set_var("txn.kvpilot_host", host)
  txn:set_var("txn.kvpilot_port", tonumber(port))
  txn:set_var("txn.kvpilot_replica", text(res.body, "replica_id") or "")
  txn:set_var("txn.kvpilot_reservation", text(res.body, "reservation_id") or "")
  local extra = res.body:match('"request_headers"%s*:%s*(%b{})')
  if extra then
    for name, value in extra:gmatch('"([^"\\]+)"%s*:%s*"([^"\\]*)"') do
      txn.http:req_set_header(name, value)
    end
  end
end, 0)

-- report tells kvpilot about a booking, without anybody waiting for it.
local function report(reservation, what)
  core.register_task(function()
    core.httpclient():post({ url = base .. "/kvpilot/v1/reservations/" .. reservation .. ":" .. what,
      headers = { ["content-type"] = { "application/json" } }, body = "{}", timeout = timeout })
  end)
end

local Life = {}
Life.id = "kvpilot: life of a booking"
Life.flags = filter.FLT_CFG_FL_HTX
Life.__index = Life

function Life:new()
  return setmetatable({}, Life)
end

function Life:start_analyze(txn, chn)
  if not chn:is_resp() then
    return
  end
  filter.register_data_filter(self, chn)
end

function Life:http_headers(txn, msg)
  if not msg.channel:is_resp() then
    return
  end
  local reservation = txn:get_var("txn.kvpilot_reservation")
  if reservation and reservation ~= "" then
    report(reservation, "prefillCompleted")
  end
end

-- Without this function HAProxy 2.6 holds the payload back; with it, all of it goes on.
function Life:http_payload(txn, msg)
end

function Life:http_end(txn, msg)
  if not msg.channel:is_resp() then
    return
  end
  local reservation = txn:get_var("txn.kvpilot_reservation")
  if reservation and reservation ~= "" then
    report(reservation, "release")
  end
end

core.register_filter("kvpilot", Life, function(self, args)
  return self
end)
