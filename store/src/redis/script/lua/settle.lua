-- Settlements: the correction of a charge, in every record of the limit that the key still holds, or must hold.
-- Uses the codec and the rules of all algorithms. Defines `settle`.

-- Appends an empty record to a key that has none. Returns its index.
local function extend(key, tag)
  if last_record[key] >= first_record[key] then return end
  append(tag, 0, 0, 0, '')
  first_record[key], last_record[key] = records - 3, records - 3
  return records - 3
end

-- Settles the charge whose key stands at p, which may be an overflow counter. Returns the position after it, or an error.
local function settle(p, _, overflowed)
  local key, charged, more, less, least, limit = a[p], a[p + 1], a[p + 2], a[p + 3], a[p + 4], a[p + 5]
  local found = 0
  p = p + 6
  if overflowed then key = overflow_of(key) end
  local from = first_record[key] or load(key)
  if type(from) == 'table' then return from end
  if most_of[limit] > 0 and not overflowed then grid_of_key[key] = grid_of[limit] end
  for r = first_rate[limit], first_rate[limit + 1] - 1 do
    local i = from > 0 and find(tag_of[r], first_record[key], last_record[key])
    if not i and from > 0 and least > 0 and kind_of[r] == CONCURRENCY then i = extend(key, tag_of[r]) end
    if i then
      local slots = rules_of[r].settle(i, r, p, charged, more, less, least)
      if kind_of[r] == CONCURRENCY then found = slots end
      changed[key] = true
    end
    p = p + 5
  end
  out[o] = from < 0 and from or found
  o = o + 1
  return p
end

