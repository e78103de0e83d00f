-- Resets: the removal of all records of a key, as if its client had never sent a request. Slots leave a mark.
-- Uses the codec. Defines `reset`.

-- Resets the key that stands at p. Returns the position after it, or an error.
local function reset(p)
  local key, limit = a[p], a[p + 1]
  local from = first_record[key] or load(key)
  if type(from) == 'table' then return from end
  if from > 0 then
    if most_of[limit] > 0 then grid_of_key[key] = grid_of[limit] end
    local begin = records + 1
    for r = first_rate[limit], first_rate[limit + 1] - 1 do
      if rules_of[r].leave then rules_of[r].leave(r) end
    end
    first_record[key], last_record[key], changed[key] = begin, records - 3, true
  end
  out[o] = from < 0 and from or 0
  o = o + 1
  return p + 2
end

