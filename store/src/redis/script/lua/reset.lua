-- Resets: what a key counts is removed, as if its client had never sent a request. Windows and logs stay, without usage: whoever knows
-- them would take a key that is gone for lost. Slots leave a mark.
-- Uses the codec. Defines `reset`.

-- Resets the key that stands at p. Returns the position after it, or an error.
local function reset(p)
  local key, limit = a[p], a[p + 1]
  local from = first_record[key] or load(key)
  if type(from) == 'table' then return from end
  if from > 0 then
    if most_of[limit] > 0 then grid_of_key[key] = grid_of[limit] end
    local begin, most = records + 1, records + 4 * MAX_EMPTIED
    for i = from, last_record[key], 4 do
      local tag, stored = record[i], record[i + 1]
      local kind = tag % 8192
      local slot, ahead, tail = now, (tag - kind) / 8192, kind >= LOG and '' or nil
      if kind < FIRST_REQUEST then
        local slots, length = slots_of(kind, ahead)
        slot, ahead, tail = (now - now % length) / length, 1, nil
        if slots > 1 then
          ahead, tail = slots, {}
          for k = 1, slots - 1 do tail[k] = 0 end
        end
      end
      -- A clock that has stepped back a little does not shorten it.
      if stored > slot and stored - slot <= ahead then slot = stored end
      if kind < BUCKET and ends_of(i, tag, stored) > now and records < most then append(tag, slot, 0, 0, tail) end
    end
    for r = first_rate[limit], first_rate[limit + 1] - 1 do
      if rules_of[r].leave then rules_of[r].leave(r) end
    end
    first_record[key], last_record[key], changed[key] = begin, records - 3, true
  end
  out[o] = from < 0 and from or 0
  o = o + 1
  return p + 2
end

