-- Settlements: the correction of a charge, in every record of the limit that the key still holds, or must hold. A rate without a record
-- has charged nothing: what was charged is in the windows of former rates, with which it will begin.
-- Uses the codec and the rules of all algorithms. Defines `settle`.

-- Appends an empty record to a key that has none. Returns its index.
local function extend(key, tag)
  if last_record[key] >= first_record[key] then return end
  append(tag, 0, 0, 0, '')
  first_record[key], last_record[key] = records - 3, records - 3
  return records - 3
end

-- Settles a charge in the windows on the clock among the records of a key that the limit has no rate for.
local function settle_former(key, limit, charged, more, less)
  for i = first_record[key], last_record[key], 4 do
    local kind, is_own = record[i] % 8192, false
    for r = first_rate[limit], first_rate[limit + 1] - 1 do is_own = is_own or tag_of[r] == record[i] end
    if kind <= ONE_WINDOW and not is_own then
      kind_of[0], period_of[0] = kind, (record[i] - kind) / 8192
      rules(kind).settle(i, 0, nil, charged, more, less)
      changed[key] = true
    end
  end
end

-- Settles the charge whose key stands at p, which may be an overflow counter. Returns the position after it, or an error.
local function settle(p, _, overflowed)
  local key, charged, more, less, least, limit = a[p], a[p + 1], a[p + 2], a[p + 3], a[p + 4], a[p + 5]
  local found, begins = 0, false
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
    elseif kind_of[r] <= ONE_WINDOW then
      begins = true
    end
    p = p + 5
  end
  if begins and from > 0 then settle_former(key, limit, charged, more, less) end
  out[o] = from < 0 and from or found
  o = o + 1
  return p
end

