-- Concurrency limits: a list of holders in 16 bytes each: the holder, the number of its slots, the end of its lease. A reset leaves
-- a mark in it: a holder with the number 0.
-- Uses the codec, `admit` and `rebase`. Defines the rules of concurrency limits.

local function concurrency_rules()
  local MAX_CONCURRENT, LONGEST = 1000000, 3600000

  -- Returns the bytes of each holder whose lease has not ended, the latest end, the number of slots in use, the index of the
  -- given holder, if it is among them, the latest end of a lease of slots, and the end of the mark, if there is one.
  local function roll(i, lease, holder)
    local all, live, latest, used, own, newest, mark = i and tails[i] or '', {}, 0, 0, nil, 0, nil
    if lease < LONGEST then lease = LONGEST end
    for at = 1, #all, 16 do
      local who, slots, ends = unpack('<I6I4I6', all, at)
      if (slots > 0 or who == 0) and ends > now then
        if ends > now + lease then ends = now + lease end
        if ends > latest then latest = ends end
        used = used + slots
        live[#live + 1] = pack('<I6I4I6', who, slots, ends)
        if who == 0 then mark = mark or ends elseif ends > newest then newest = ends end
        if who == holder and not own then own = #live end
      end
    end
    return live, latest, used, own, newest, mark
  end

  -- Returns the number of slots of a holder, and the end of its lease, which is renewed to `ends` if it is earlier.
  local function renewed(bytes, ends)
    local _, slots, last = unpack('<I6I4I6', bytes)
    return slots, last > ends and last or ends
  end

  -- Parameters: the holder, and the length of a lease in milliseconds.
  local function room(i, key, r, p, cost, callers, m)
    local live, latest, used, own, newest = roll(i, a[p + 1], a[p])
    if #live > 0 and rebase(i, key, latest, 0, 0) then tails[i] = table.concat(live) end
    slot_of[m], current_of[m], previous_of[m], tail_of[m], instant_of[m], used_of[m] = latest, 0, 0, live, own, used
    last_of[m] = newest
    return admit(not own and #live >= MAX_HOLDERS and 0 or requests_of[r] - used, cost, callers)
  end

  local function charge(_, p, cost, admitted, _, m)
    local live, own, add = tail_of[m], instant_of[m], admitted * cost
    if add > 0 then
      local slots, ends = 0, now + a[p + 1]
      if own then slots, ends = renewed(live[own], ends) end
      live[own or #live + 1] = pack('<I6I4I6', a[p], add + slots, ends)
      if ends > slot_of[m] then slot_of[m] = ends end
      if ends > last_of[m] then last_of[m] = ends end
      used_of[m] = used_of[m] + add
    end
    tail_of[m] = table.concat(live)
  end

  local function reply(_, _, _, m)
    out[o], out[o + 1], out[o + 2] = last_of[m], used_of[m], 0
    o = o + 3
  end

  local function settle(i, _, p, charged, more, less, least)
    local holder, lease, slots, found = a[p], a[p + 1], 0, 0
    local live, _, _, own, _, mark = roll(i, lease, holder)
    local ends = now + lease
    if own then slots, ends = renewed(live[own], ends) end
    if least > slots and (own or #live < MAX_HOLDERS) then
      -- The slots of before a reset are free, and stay so.
      if mark and charged < (mark - LONGEST + 1) * 1000 then
        found = -3
      else
        found, slots, own = least - slots, least, own or #live + 1
      end
    end
    if own and found >= 0 then
      slots = slots + more - less
      if slots > MAX_CONCURRENT then slots = MAX_CONCURRENT end
      if slots > 0 then live[own] = pack('<I6I4I6', holder, slots, ends) else table.remove(live, own) end
    end
    local latest = 0
    for at = 1, #live do
      local ends = unpack('<I6', live[at], 11)
      if ends > latest then latest = ends end
    end
    record[i + 1], tails[i] = latest, table.concat(live)
    return found
  end

  -- Appends the record that a reset leaves: the mark alone.
  local function leave(r)
    append(tag_of[r], now + LONGEST, 0, 0, pack('<I6I4I6', 0, 0, now + LONGEST))
  end

  return {room = room, charge = charge, reply = reply, settle = settle, leave = leave}
end
makers[CONCURRENCY] = concurrency_rules

