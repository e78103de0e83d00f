-- Runs the batch: reads the limits, decides the operations one after another, and writes what has changed.
-- Uses the head, the codec, `rules`, `decide`, `settle`, `reset`, `take` and `write`.

local p, rates = 3, 0
for limit = 1, a[2] or 0 do
  local count = a[p]
  most_of[limit], grid_of[limit] = a[p + 1], a[p + 2]
  p = p + 3
  for r = rates + 1, rates + count do
    local tag = a[p + 1]
    local kind = tag % 8192
    requests_of[r], tag_of[r], kind_of[r], period_of[r], rules_of[r] = a[p], tag, kind, (tag - kind) / 8192, rules(kind)
    p = p + 2
  end
  rates = rates + count
  first_rate[limit + 1] = rates + 1
end

local operations = 0
while p <= #a do
  local operation = a[p] == 6 and take or a[p] == 4 and reset or a[p] % 2 == 1 and decide or settle
  p = operation(p + 1, operations, a[p] > 1)
  operations = operations + 1
  if type(p) == 'table' then return p end
end

write()
for n = 1, #notes do out[o + n - 1] = notes[n] end
return out
