-- Tests of health.lua: lua5.4 hack/argocd/health_test.lua
local directory = arg[0]:match("^(.*)/[^/]*$") or "."

-- Returns the health of an object whose condition Ready has this status and reason.
local function health(kind, status, reason, generations)
  obj = { kind = kind, metadata = { name = "a", generation = 2 } }
  if status ~= nil then
    local observed = generations or 2
    obj.status = {
      conditions = {
        { type = "Accepted", status = "True", reason = "Accepted", observedGeneration = observed },
        { type = "Ready", status = status, reason = reason, message = "why", observedGeneration = observed },
      },
    }
  end
  return dofile(directory .. "/health.lua")
end

local policy, store = "RateLimitPolicy", "RateLimitStore"
local cases = {
  { "Healthy", policy, "True", "Ready" },
  { "Healthy", policy, "True", "ShadowedByInstallation" },
  { "Progressing", policy, nil, nil },
  { "Progressing", policy, "True", "Ready", 1 },
  { "Progressing", policy, "False", "Pending" },
  { "Progressing", policy, "Unknown", "AwaitingReports" },
  { "Progressing", policy, "Unknown", "NoReports" },
  { "Suspended", policy, "False", "NoPods" },
  { "Degraded", policy, "False", "Invalid" },
  { "Degraded", policy, "False", "PodsUnconfirmed" },
  { "Degraded", policy, "False", "NotInjected" },
  { "Degraded", policy, "False", "BypassedByService" },
  { "Degraded", policy, "False", "RefNotFound" },
  { "Healthy", store, "True", "Ready" },
  { "Healthy", store, "Unknown", "NoReports" },
  { "Progressing", store, "Unknown", "Waiting" },
  { "Degraded", store, "False", "ConnectionRefused" },
  { "Progressing", store, nil, nil },
}
for _, case in ipairs(cases) do
  local expected, kind, status, reason, generation = case[1], case[2], case[3], case[4], case[5]
  local found = health(kind, status, reason, generation)
  local what = string.format("%s %s %s", kind, tostring(status), tostring(reason))
  assert(found.status == expected, what .. ": " .. found.status .. ", not " .. expected)
  assert(type(found.message) == "string" and found.message ~= "", what .. ": no message")
  if status ~= nil and generation == nil then
    assert(found.message == reason .. ": why", what .. ": " .. found.message)
  end
end

-- A status without conditions, as right after the first write.
obj = { kind = policy, metadata = { generation = 1 }, status = {} }
assert(dofile(directory .. "/health.lua").status == "Progressing")
print(#cases + 1 .. " cases")
