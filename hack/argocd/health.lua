-- The health of RateLimitPolicies and RateLimitStores for Argo CD. docs/gitops.md shows how to install it.
--
-- Argo CD sets `obj` and expects a table with `status` and `message`. It runs Lua 5.1.
local function find_ready()
  local conditions = obj.status ~= nil and obj.status.conditions or nil
  for _, condition in ipairs(conditions or {}) do
    if condition.type == "Ready" then
      return condition
    end
  end
  return nil
end

local ready = find_ready()
if ready == nil then
  return { status = "Progressing", message = "The operator has not written a status yet" }
end
if ready.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "The status describes an older generation" }
end

local message = ready.reason .. ": " .. (ready.message or "")
if ready.status == "True" then
  return { status = "Healthy", message = message }
end
-- No sidecar uses this store, so nothing can be said about it. A policy that waits for reports has another reason.
if obj.kind == "RateLimitStore" and ready.reason == "NoReports" then
  return { status = "Healthy", message = message }
end
-- No pod is selected: the workload may come later in the same sync, so this must not fail it.
if ready.reason == "NoPods" then
  return { status = "Suspended", message = message }
end
if ready.status == "Unknown" or ready.reason == "Pending" then
  return { status = "Progressing", message = message }
end
return { status = "Degraded", message = message }
