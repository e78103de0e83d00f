-- The block of a client that a limit denies too often: the instants of the denials, newest first, in 6 bytes each, and as the slot
-- the time at which the last of them ends. While the client is blocked there are no instants, and the slot is the end of the block.
-- Uses the codec and `rebase`. Defines the rules of blocks. A block is the last rate of its limit.

local function block_rules()
  -- Parameters: the length of a block, and the time for which a denial counts, in milliseconds.

  -- Returns the slot of a record and its instants at this time.
  local function roll(i, p)
    if not i then return 0, '' end
    local ends, instants, kept = record[i + 1], tails[i], {}
    if #instants == 0 then
      if ends > now + a[p] then ends = now + a[p] end
      return ends > now and ends or 0, ''
    end
    ends = 0
    for at = 1, #instants, 6 do
      local t = unpack('<I6', instants, at)
      if t > now then t = now end
      if t + a[p + 1] > now then
        if #kept == 0 then ends = t + a[p + 1] end
        kept[#kept + 1] = pack('<I6', t)
      end
    end
    return ends, table.concat(kept)
  end

  -- Remembers in `instant` how many callers the other rates of the limit admit, and in `previous` whether the client is blocked.
  local function room(i, key, r, p, cost, callers, m)
    local ends, instants = roll(i, p)
    if ends > 0 and rebase(i, key, ends, 0, 0) then tails[i] = instants end
    local blocked = ends > 0 and #instants == 0
    slot_of[m], current_of[m], previous_of[m], tail_of[m], instant_of[m], used_of[m] =
      ends, 0, blocked and 1 or 0, instants, callers, #instants / 6
    return blocked and 0 or callers
  end

  -- Counts a denial by the other rates of the limit. Returns whether it did.
  local function charge(r, p, cost, admitted, callers, m)
    if admitted == callers or instant_of[m] == callers or previous_of[m] == 1 then return false end
    if used_of[m] + 1 >= requests_of[r] then
      slot_of[m], tail_of[m], used_of[m] = now + a[p], '', 0
    else
      slot_of[m], tail_of[m], used_of[m] = now + a[p + 1], pack('<I6', now) .. tail_of[m], used_of[m] + 1
    end
    return true
  end

  local function reply(_, _, _, m)
    out[o], out[o + 1], out[o + 2] = slot_of[m], used_of[m], previous_of[m]
    o = o + 3
  end

  local function settle(i, _, p)
    record[i + 1], tails[i] = roll(i, p)
  end

  return {room = room, charge = charge, reply = reply, settle = settle}
end
makers[BLOCK] = block_rules

