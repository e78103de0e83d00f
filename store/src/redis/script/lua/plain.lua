-- Decides plain checks: each has a cost of 1 and one counter, whose limit has one rate, a fixed window on the clock or a
-- sliding window. What this script computes is defined in Rust, by the same functions as for the general script.
--
-- KEYS     the keys of the counters, no key twice
-- ARGV[1]  any number of groups of consecutive checks, 26 bytes each: the deadline in milliseconds of this server's clock, the
--          number of requests of the limit, the tag of its rate (6 bytes each), how many callers send each check, and how
--          many checks there are (2 bytes each), and how many keys of the limit a partition takes (4 bytes), or 0
-- reply    this server's time in microseconds; then for each check the number of admitted callers, and the current and the
--          previous count afterwards. Instead of the number of callers, -1 if the check was not decided and nothing written:
--          the value holds other records, or one ahead of the clock, or is no string, or a product is too large for a double.
--          After the deadline only the time is returned, and nothing is written. A new key in a full partition is not decided
--          either. If the key is new or in a new slot, and the number of keys is limited, 65536 times the number of keys in
--          the partition is added to the number of callers; and 2^48 if the key was created.
local call, pack, unpack, spread, arguments = redis.call, struct.pack, struct.unpack, unpack, ARGV[1]
local time, keys, done, at = call('TIME'), KEYS, 0, 1
local micros = time[1] * 1000000 + time[2]
local now = (micros - micros % 1000) / 1000
local reply, r, values, registries = {micros}, 1, nil, nil

while at <= #arguments do
  local deadline, requests, tag, callers, checks, most, next = unpack('<I6I6I6I2I2I4', arguments, at)
  if now > deadline then return reply end
  values = values or call('MGET', spread(keys))
  -- A tag is the period * 8192 + 520 for two windows, or + 1024 for one. A record adds the width of its counts.
  local windows = tag % 8192 == 520 and 2 or 1
  -- The format of a record whose counts take one byte; the time at which a record of the current slot expires.
  local short, expiry = windows == 2 and '<I6I6BB' or '<I6I6B', nil
  local period = (tag - tag % 8192) / 8192
  local rest = period - now % period
  local slot = (now + rest) / period - 1
  for k = done + 1, done + checks do
    local key, value = keys[k], values[k]
    local width, own, stored, current, previous = nil, tag, nil, 0, 0
    if value then
      width = (#value - 12) / windows
      if width == 1 then
        own, stored, current, previous = unpack(short, value)
      elseif width == 2 or width == 3 or width == 4 or width == 5 or width == 6 then
        own, stored, current, previous = unpack('<I6I6I' .. width .. (windows == 2 and 'I' .. width or ''), value)
      else
        own, stored = -1, slot
      end
      own = own - width
      if windows == 1 then previous = 0 end
      if stored ~= slot then
        previous = windows == 2 and stored == slot - 1 and current or 0
        current = 0
      end
    end
    local registry, count_keys = nil, most > 0 and stored ~= slot
    if count_keys and not value then
      registries = registries or make_registries(now)
      registry = registries.open(key, period)
      -- The general script charges the overflow counter instead.
      if registry.keys >= most then own = -1 end
    end
    local share, admitted = previous * rest, -1
    if own == tag and (not value or stored <= slot) and share < 9007199254740992 then
      -- ceil(share / period) of the previous window still counts.
      local over = share % period
      admitted = requests - current - (share - over) / period - (over > 0 and 1 or 0)
      if admitted > callers then admitted = callers elseif admitted < 0 then admitted = 0 end
      if admitted > 0 then
        current = current + admitted
        if stored == slot and current < 256 ^ width then
          -- SETRANGE keeps the time to live, and costs less than SET.
          call('SETRANGE', key, '12', width == 1 and string.char(current) or pack('<I' .. width, current))
        else
          local count = current > previous and current or previous
          width = count < 256 and 1 or count < 65536 and 2 or count < 16777216 and 3 or count < 4294967296 and 4
            or count < 1099511627776 and 5 or 6
          local format = width == 1 and short or '<I6I6I' .. width .. (windows == 2 and 'I' .. width or '')
          local record = pack(format, tag + width, slot, current, previous)
          expiry = expiry or string.format('%.0f', (slot + windows) * period)
          if value then
            call('SET', key, record, 'PXAT', expiry)
          elseif call('SET', key, record, 'PXAT', expiry, 'NX') then
            admitted = admitted + 281474976710656
          else
            -- MGET also returns nothing for a value that is no string.
            admitted, count_keys = -1, false
          end
          if count_keys then
            registries = registries or make_registries(now)
            registry = registry or registries.open(key, period)
            registries.replace(registry, value and (stored + windows) * period or 0, (slot + windows) * period)
            admitted = admitted + 65536 * registry.keys
          end
        end
      end
    end
    reply[r + 1] = admitted
    reply[r + 2] = current
    reply[r + 3] = previous
    r = r + 3
  end
  done, at = done + checks, next
end
if registries then registries.write() end
return reply
