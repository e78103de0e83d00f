-- Decides a batch of checks in one call. What it computes is defined in Rust: Rate::roll and Rate::has_room of
-- sluice-limiter, decide of sluice-store; the bytes of a value in record.rs of sluice-limiter.
--
-- KEYS     the key of every counter, each once
-- ARGV[1]  MessagePack array of whole numbers: the deadline in milliseconds of this server's clock, then for each
--          check: number of counters, number of callers who ask the same; for each of its counters: index in KEYS,
--          cost, number of rates; for each of its rates: requests, tag
-- reply    this server's time in milliseconds, then for each check: how many of the callers are admitted, and for
--          each rate of each counter the state afterwards: slot, current, previous. Instead of all that, -1 if a key
--          is not a string and -2 if its bytes are no records. After the deadline: the time alone, and nothing is
--          written.
--
-- All reads come before all writes, so an error leaves nothing half done. Every number is a whole one below 2^53,
-- where Lua's doubles are exact, and so is x % y for such x and y: (x - x % y) / y is the floor of x / y.

local call, byte, pack, unpack = redis.call, string.byte, struct.pack, struct.unpack
local MAX_COUNT, MAX_PERIOD, MAX_FOREIGN, MAX_BYTES = 1099511627776, 31622400000, 8, 8192
-- The lowest 13 bits of a tag: algorithm * 512 + previous slots * 8.
local TWO_WINDOWS, ONE_WINDOW = 520, 1024
local keys, a = KEYS, cmsgpack.unpack(ARGV[1])

local t = call('TIME')
local now = t[1] * 1000 + (t[2] - t[2] % 1000) / 1000
if now > a[1] then return {now} end

-- Formats of a record by the width of its counts, made when first met.
local formats_two, formats_one = {}, {}
local function format(two, width)
  local f
  if two then
    f = '<I6I6I' .. width .. 'I' .. width
    formats_two[width] = f
  else
    f = '<I6I6I' .. width
    formats_one[width] = f
  end
  return f
end

-- Records of all keys side by side, four cells each: tag, slot, current, previous; n cells are taken. They are
-- filled one by one, as a multiple assignment begins at its right end, where a table cannot grow as an array.
local rec, n = {}, 0
-- Keys, five cells each: where the first record stands (or -1 and -2 for what is no counter), where the last one; of
-- the value that was read the length, and its records' latest end, which is also when the key expires; whether it is
-- to be written.
local info = {}

-- Appends the records of a value; returns their latest end, or -2 if there is something else in it.
local function parse(value)
  local pos, length, ends = 1, #value, 0
  if length > MAX_BYTES then return -2 end
  while pos <= length do
    if pos == length then return -2 end
    local b0, b1 = byte(value, pos, pos + 1)
    local low = b0 + b1 % 32 * 256
    local width = low % 8
    local kind = low - width
    local two = kind == TWO_WINDOWS
    if (not two and kind ~= ONE_WINDOW) or width == 0 or width == 7
      or pos + 11 + (two and 2 * width or width) > length then return -2 end
    local tag, slot, current, previous, kept
    if two then
      tag, slot, current, previous, pos = unpack(formats_two[width] or format(true, width), value, pos)
      kept = 1
    else
      tag, slot, current, pos = unpack(formats_one[width] or format(false, width), value, pos)
      previous, kept = 0, 0
    end
    tag = tag - width
    local period = (tag - kind) / 8192
    if period < 1 or period > MAX_PERIOD then return -2 end
    rec[n + 1] = tag
    rec[n + 2] = slot
    rec[n + 3] = current
    rec[n + 4] = previous
    n = n + 4
    local e = (slot + kept + 1) * period
    if e > ends then ends = e end
  end
  return ends
end

-- ceil(previous * rest / period) for rest <= period, where the product may pass 2^53. With previous = q * period + r:
-- q * rest + ceil(r * rest / period); r * rest is taken as r * (h * 2^18 + l). Periods are below 2^35, so r * h is
-- below 2^52, and the remainder of it times 2^18 below 31622400000 * 2^18 < 2^53.
local function long_share(previous, rest, period)
  local r = previous % period
  local whole = (previous - r) / period * rest
  local l = rest % 262144
  local x = r * ((rest - l) / 262144)
  local m = x % period
  whole = whole + (x - m) / period * 262144
  x = m * 262144
  local m1 = x % period
  whole = whole + (x - m1) / period
  x = r * l
  local m2 = x % period
  whole = whole + (x - m2) / period
  m = m1 + m2
  if m > period then return whole + 2 elseif m > 0 then return whole + 1 end
  return whole
end

local out, o, p, stop = {now}, 2, 2, #a
-- The records of one check, rolled to now, three cells each: slot, current, previous.
local rolled = {}
while p <= stop do
  local counters, admitted, bad = a[p], a[p + 1], nil
  local start, m = p + 2, 0
  p = start
  for _ = 1, counters do
    local k, cost, rates = a[p] * 5, a[p + 1], a[p + 2]
    p = p + 3
    local from = info[k - 4]
    if not from then
      local value, ends, start = redis.pcall('GET', keys[a[p - 3]]), 0, n
      from = n + 1
      if value then
        if type(value) == 'table' then
          if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
          from = -1
        else
          ends = parse(value)
          if ends < 0 then n, from = start, ends end
        end
      end
      info[k - 4] = from
      info[k - 3] = n - 3
      info[k - 2] = value and #value or 0
      info[k - 1] = ends
      info[k] = false
    end
    if from < 0 then
      bad = bad or from
      p = p + 2 * rates
    else
      local to = info[k - 3]
      for _ = 1, rates do
        local requests, tag = a[p], a[p + 1]
        p = p + 2
        local kind = tag % 8192
        local period = (tag - kind) / 8192
        local slot = (now - now % period) / period
        local current, previous = 0, 0
        for i = from, to, 4 do
          if rec[i] == tag then
            local stored = rec[i + 1]
            if stored == slot then
              current, previous = rec[i + 2], rec[i + 3]
            elseif stored == slot - 1 then
              if kind == TWO_WINDOWS then previous = rec[i + 2] end
            elseif stored == slot + 1 then
              slot, current, previous = stored, rec[i + 2], rec[i + 3]
            elseif stored > slot then
              current = rec[i + 2] + rec[i + 3]
              if current > MAX_COUNT then current = MAX_COUNT end
            end
            break
          end
        end
        local room = requests - current
        if previous > 0 then
          local rest = (slot + 1) * period - now
          if rest > period then rest = period end
          local x = previous * rest
          if x <= 9007199254740992 then
            local over = x % period
            room = room - (x - over) / period
            if over > 0 then room = room - 1 end
          else
            room = room - long_share(previous, rest, period)
          end
        end
        if cost == 0 then
          if room < 1 then admitted = 0 end
        elseif cost * admitted > room then
          if room < cost then admitted = 0 else admitted = (room - room % cost) / cost end
        end
        rolled[m + 1] = slot
        rolled[m + 2] = current
        rolled[m + 3] = previous
        m = m + 3
      end
    end
  end
  if bad then
    out[o] = bad
    o = o + 1
  else
    out[o] = admitted
    o = o + 1
    p, m = start, 0
    for _ = 1, counters do
      local k, cost, rates = a[p] * 5, a[p + 1], a[p + 2]
      p = p + 3
      local add, from, to = admitted * cost, info[k - 4], info[k - 3]
      local base, alone = n, false
      if add > 0 then
        info[k] = true
        alone = rates == 1 and from == to and rec[from] == a[p + 1]
        if alone then
          base = from - 1
        else
          n, info[k - 4] = n + 4 * rates, n + 1
        end
      end
      for i = base + 1, base + 4 * rates, 4 do
        local slot, current, previous = rolled[m + 1], rolled[m + 2] + add, rolled[m + 3]
        m = m + 3
        out[o] = slot
        out[o + 1] = current
        out[o + 2] = previous
        o = o + 3
        if add > 0 then
          rec[i] = a[p + 1]
          rec[i + 1] = slot
          rec[i + 2] = current
          rec[i + 3] = previous
        end
        p = p + 2
      end
      if add > 0 and not alone then
        -- Records of other periods and algorithms stay until they expire: during a roll-out both are in use. One
        -- that is far ahead is rebased as its own rate would do, or it would hold the key for as long.
        local own, room = n, MAX_FOREIGN
        for i = from, to, 4 do
          local tag, used = rec[i], false
          for j = base + 1, own, 4 do
            if rec[j] == tag then used = true break end
          end
          if not used and room > 0 then
            local kind = tag % 8192
            local period = (tag - kind) / 8192
            local slot, current, previous = rec[i + 1], rec[i + 2], rec[i + 3]
            if (slot + (kind == TWO_WINDOWS and 2 or 1)) * period > now then
              local newest = (now - now % period) / period
              if slot > newest + 1 then
                slot, current, previous = newest, current + previous, 0
                if current > MAX_COUNT then current = MAX_COUNT end
              end
              rec[n + 1] = tag
              rec[n + 2] = slot
              rec[n + 3] = current
              rec[n + 4] = previous
              n, room = n + 4, room - 1
            end
          end
        end
        info[k - 3] = n - 3
      end
    end
  end
end

for k = 1, #keys do
  local at = k * 5
  if info[at] then
    local value, ends = nil, 0
    for i = info[at - 4], info[at - 3], 4 do
      local tag, slot, current, previous = rec[i], rec[i + 1], rec[i + 2], rec[i + 3]
      local kind = tag % 8192
      local period = (tag - kind) / 8192
      local top = current
      if previous > top then top = previous end
      local width = top < 256 and 1 or top < 65536 and 2 or top < 16777216 and 3 or top < 4294967296 and 4
        or top < 1099511627776 and 5 or 6
      local bytes
      if kind == TWO_WINDOWS then
        bytes = pack(formats_two[width] or format(true, width), tag + width, slot, current, previous)
      else
        bytes = pack(formats_one[width] or format(false, width), tag + width, slot, current)
      end
      value = value and value .. bytes or bytes
      local e = (slot + (kind == TWO_WINDOWS and 2 or 1)) * period
      if e > ends then ends = e end
    end
    -- SETRANGE keeps the time to live, and costs less.
    if #value == info[at - 2] and ends == info[at - 1] then
      call('SETRANGE', keys[k], '0', value)
    else
      call('SET', keys[k], value, 'PXAT', ends)
    end
  end
end
return out
