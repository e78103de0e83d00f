-- Runs the batch: reads the limits, decides the operations one after another, and writes what has changed.
-- Uses the head, the codec, `rules`, `decide`, `settle`, `reset` and `write`.

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
  local number, count = a[p], nil
  local operation = number > 4 and rules(RESERVATIONS).look_or_take or number == 4 and reset or number % 2 == 1 and decide or settle
  p, count = operation(p + 1, operations, number > 1)
  if type(p) == 'table' then return p end
  operations = operations + (count or 1)
end

write()
for n = 1, #notes do out[o + n - 1] = notes[n] end
return out
