-- The reservations of a counter that are not settled: a list of 26 bytes each, in the order of the charges: the id, the cost, the
-- instant of the charge in milliseconds and the microseconds beyond, and the expiry.
-- Uses the head, the codec and `rebase`. Defines the rules of reservations. They include `look_or_take`, which is none, because each
-- function that a part defines costs the time of all calls.

local function reservation_rules()
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

  -- Returns the index of the reservation with an id, or of the oldest one if the id is 0.
  local function reservation_at(open, id)
    for at = 1, #open do
      if id == 0 or unpack('<I6', open[at]) == id then return at end
    end
  end

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
    local at = reservation_at(open, a[p])
    if at then table.remove(open, at) end
    record[i + 1], tails[i] = latest_of(open), table.concat(open)
  end

  -- Looks at the reservation that stands at p, or takes it out. Returns the position after it, or an error. If the reservation was
  -- taken, that is the position of its correction, which is no operation of its own: the second result is then 0.
  local function look_or_take(p)
    local key, is_look = a[p], a[p - 1] == 5
    local from = first_record[key] or load(key)
    if type(from) == 'table' then return from end
    local i = from > 0 and find(8192 + RESERVATIONS, from, last_record[key])
    local open = open_reservations(i)
    local at = reservation_at(open, a[p + 1])
    local first = from < 0 and from or 0
    if is_look then
      local cost, millis, micros = 0, 0, 0
      if at then
        first, cost, millis, micros = unpack('<I6I6I6I2', open[at])
        if micros > 999 then micros = 999 end
      end
      out[o], out[o + 1], out[o + 2], out[o + 3] = first, cost, millis, micros
      o = o + 4
      return p + 2
    end
    if at then
      table.remove(open, at)
      record[i + 1], tails[i], changed[key] = latest_of(open), table.concat(open), true
      first = 1
    end
    out[o] = first
    o = o + 1
    if at then return p + 3, 0 end
    return p + 3 + a[p + 2]
  end

  return {room = room, charge = charge, reply = reply, settle = settle, look_or_take = look_or_take}
end
makers[RESERVATIONS] = reservation_rules

