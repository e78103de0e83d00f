-- The reservations of a counter that are not settled: a list of 26 bytes each, in the order of the charges: the id, the cost, the
-- instant of the charge in milliseconds and the microseconds beyond, and the expiry.
-- Uses the codec and `rebase`. Defines the rules of reservations, and `take`.

-- Returns the latest expiry of these reservations.
local function latest_of(open)
  local latest = 0
  for at = 1, #open do
    local ends = unpack('<I6', open[at], 21)
    if ends > latest then latest = ends end
  end
  return latest
end

-- Returns the bytes of each reservation of the record at i that has not expired. None stays open for longer than the longest period.
local function open_reservations(i)
  local all, open = i and tails[i] or '', {}
  for at = 1, #all, 26 do
    local ends = unpack('<I6', all, at + 20)
    if ends > now + MAX_PERIOD then ends = now + MAX_PERIOD end
    if ends > now then open[#open + 1] = sub(all, at, at + 19) .. pack('<I6', ends) end
  end
  return open
end

-- Removes the reservation with an id, or the oldest one if the id is 0, and returns its bytes.
local function remove_reservation(open, id)
  for at = 1, #open do
    if id == 0 or unpack('<I6', open[at]) == id then return table.remove(open, at) end
  end
end

local function reservation_rules()
  -- Parameters: the id, and the time for which the reservation stays open, in milliseconds.
  local function room(i, key, _, _, _, callers, m)
    local open = open_reservations(i)
    local latest = latest_of(open)
    if #open > 0 and rebase(i, key, latest, 0, 0) then tails[i] = table.concat(open) end
    slot_of[m], current_of[m], previous_of[m], tail_of[m] = latest, 0, 0, open
    return callers
  end

  local function charge(_, p, cost, admitted, _, m)
    local open = tail_of[m]
    if admitted * cost > 0 then
      if #open >= MAX_RESERVATIONS then table.remove(open, 1) end
      open[#open + 1] =
        pack('<I6I6I6I2I6', a[p], cost > MAX_COUNT and MAX_COUNT or cost, now, fraction, now + a[p + 1])
      slot_of[m] = latest_of(open)
    end
    local used = 0
    for at = 1, #open do used = used + unpack('<I6', open[at], 7) end
    used_of[m], instant_of[m], tail_of[m] = used, #open, table.concat(open)
  end

  local function reply(_, _, _, m)
    out[o], out[o + 1], out[o + 2] = slot_of[m], used_of[m], instant_of[m]
    o = o + 3
  end

  local function settle(i, _, p)
    local open = open_reservations(i)
    remove_reservation(open, a[p])
    record[i + 1], tails[i] = latest_of(open), table.concat(open)
  end

  return {room = room, charge = charge, reply = reply, settle = settle}
end
makers[RESERVATIONS] = reservation_rules

-- Takes a reservation out of the key that stands at p: the one with an id, or the oldest if that is 0. Returns the position after
-- it, or an error.
local function take(p)
  local key, id = a[p], a[p + 1]
  local from = first_record[key] or load(key)
  if type(from) == 'table' then return from end
  local i = from > 0 and find(8192 + RESERVATIONS, from, last_record[key])
  local open = open_reservations(i)
  local bytes, cost, millis, micros = remove_reservation(open, id), 0, 0, 0
  if bytes then
    cost, millis, micros = unpack('<I6I6I2', bytes, 7)
    if micros > 999 then micros = 999 end
    record[i + 1], tails[i], changed[key] = latest_of(open), table.concat(open), true
  end
  out[o], out[o + 1], out[o + 2] = from < 0 and from or cost, millis, micros
  o = o + 3
  return p + 2
end

