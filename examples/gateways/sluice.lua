-- HAProxy asks Sluice whether a request may pass.
local ADDRESS = "http://sluice:8080/v1/auth/haproxy/shop/-" -- an address of IP, or a name with httpclient.resolvers.id
local TIMEOUT = 500 -- milliseconds
local OPEN = true -- requests pass while no service answers
-- Headers of the answer that the application gets in place of its client's. Add those of onLimit.mark and --authorizer-headers.
local HEADERS = { "sluice-charged" }
local MAX_HEADERS = 80 -- what httpclient sends, with a margin: beyond it HAProxy 2.6 ends

-- They are about the connection, or Sluice's own.
local LEFT_OUT = {
  ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["host"] = true, ["keep-alive"] = true,
  ["te"] = true, ["transfer-encoding"] = true, ["upgrade"] = true, ["sluice-authorization"] = true,
}

-- Removes from `Connection` what names other headers: whoever is behind HAProxy would drop them, and they were asked about.
local function keep_named(txn)
  local values, upgrades = txn.http:req_get_headers()["connection"], false
  for n = 0, values and #values or -1 do
    upgrades = upgrades or values[n]:lower():find("upgrade", 1, true) ~= nil
  end
  txn.http:req_del_header("connection")
  if upgrades then txn.http:req_set_header("connection", "upgrade") end
end

local function question(txn)
  keep_named(txn)
  local headers, count = {}, 0
  for name, values in pairs(txn.http:req_get_headers()) do
    if not LEFT_OUT[name] and name:sub(1, 9) ~= "x-sluice-" then
      headers[name] = {}
      -- The values of HAProxy begin at 0, and their order counts.
      for n = 0, #values do
        table.insert(headers[name], values[n])
        count = count + 1
      end
    end
  end
  if count > MAX_HEADERS then return nil end
  headers["x-sluice-method"] = { txn.sf:method() }
  headers["x-sluice-target"] = { txn.sf:pathq() }
  headers["x-sluice-address"] = { txn.sf:src() }
  local host, length = txn.sf:req_fhdr("host"), txn.sf:req_fhdr("content-length")
  if host ~= "" then headers["x-sluice-host"] = { host } end
  if length ~= "" then headers["x-sluice-body-length"] = { length } end
  return headers
end

-- Removes a header, also under names that some application takes for it.
local function remove(txn, header)
  for name, _ in pairs(txn.http:req_get_headers()) do
    if name:gsub("[_.]", "-") == header then txn.http:req_del_header(name) end
  end
end

core.register_action("sluice", { "http-req" }, function(txn)
  local asked = question(txn)
  if not asked then
    txn:done(txn:reply{ status = 431 })
    return
  end
  local answer = core.httpclient():get{ url = ADDRESS, headers = asked, timeout = TIMEOUT }
  local headers = answer.headers or {}
  if answer.status == 200 then
    local function first(name)
      return headers[name] and headers[name][0]
    end
    for _, name in ipairs(HEADERS) do
      remove(txn, name)
      if first(name) then txn.http:req_set_header(name, first(name)) end
    end
    if first("ratelimit") then txn:set_var("txn.ratelimit", first("ratelimit")) end
    if first("ratelimit-policy") then txn:set_var("txn.ratelimit_policy", first("ratelimit-policy")) end
    return
  end
  if OPEN and (answer.status == 0 or answer.status >= 500) and not headers["x-sluice-status"] then
    for _, name in ipairs(HEADERS) do remove(txn, name) end
    return
  end
  local reply = txn:reply{ status = answer.status == 0 and 503 or answer.status }
  for name, values in pairs(headers) do
    if not LEFT_OUT[name] and name ~= "x-sluice-status" then
      for n = 0, #values do
        reply:add_header(name, values[n])
      end
    end
  end
  reply:set_body(answer.body or "")
  txn:done(reply)
end)
