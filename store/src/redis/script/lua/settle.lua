-- Settlements: the correction of a charge, in every record of the limit that the key still holds.
-- Uses the codec and the rules of all algorithms. Defines `settle`.

-- Settles the charge whose key stands at p, which may be an overflow counter. Returns the position after it, or an error.
local function settle(p, _, overflowed)
  local key, charged, more, less, limit = a[p], a[p + 1], a[p + 2], a[p + 3], a[p + 4]
  p = p + 5
  if overflowed then key = overflow_of(key) end
  local from = first_record[key] or load(key)
  if type(from) == 'table' then return from end
  if most_of[limit] > 0 and not overflowed then grid_of_key[key] = grid_of[limit] end
  for r = first_rate[limit], first_rate[limit + 1] - 1 do
    local i = from > 0 and find(tag_of[r], from, last_record[key])
    if i then
      rules_of[r].settle(i, r, p, charged, more, less)
      changed[key] = true
    end
    p = p + 5
  end
  out[o] = from < 0 and from or 0
  o = o + 1
  return p
end

