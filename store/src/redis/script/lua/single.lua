-- Decides one plain check, which is what most sidecars send. It decides and writes as plain.lua does, but costs less.
--
-- KEYS[1]  the key of the counter
-- ARGV[1]  one group, as plain.lua describes it; without any, the script only returns the time
-- reply    signed integers of 7 bytes each, in one string: this server's time in microseconds, the number of admitted callers,
--          and the current and the previous count. Instead of the number of callers, -1 if the check was not decided and
--          nothing written. After the deadline only the time is returned, and nothing is written. If the key is new or in a new
--          slot, and the number of keys is limited, 65536 times the number of keys is added to the number of callers; and 2^48 if
--          the key was created.
local call, pack, unpack, key = redis.call, struct.pack, struct.unpack, KEYS[1]
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
if ARGV[1] == '' then return pack('<i7', micros) end
local deadline, requests, tag, callers, _, most = unpack('<I6I6I6I2I2I4', ARGV[1])
local now = (micros - micros % 1000) / 1000
if now > deadline then return pack('<i7', micros) end
-- Of a value that is no string this is a table, whose length is 0.
local value = redis.pcall('GET', key)
local windows = tag % 8192 == 520 and 2 or 1
local period = (tag - tag % 8192) / 8192
local rest = period - now % period
local slot = (now + rest) / period - 1
local width, own, stored, current, previous = nil, tag, nil, 0, 0
if value then
  width = (#value - 12) / windows
  if width == 1 then
    own, stored, current, previous = unpack(windows == 2 and '<I6I6BB' or '<I6I6B', value)
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
local registries, registry, keys = nil, nil, 0
if most > 0 and not value then
  registries = make_registries(now)
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
    if stored == slot and (current < 256 or current < 256 ^ width) then
      -- SETRANGE keeps the time to live, and costs less than SET.
      call('SETRANGE', key, '12', width == 1 and string.char(current) or pack('<I' .. width, current))
    else
      local count = current > previous and current or previous
      width = count < 256 and 1 or count < 65536 and 2 or count < 16777216 and 3 or count < 4294967296 and 4
        or count < 1099511627776 and 5 or 6
      local format = '<I6I6I' .. width .. (windows == 2 and 'I' .. width or '')
      local record = pack(format, tag + width, slot, current, previous)
      call('SET', key, record, 'PXAT', string.format('%.0f', (slot + windows) * period))
      if not value then keys = 4294967296 end
      if most > 0 and stored ~= slot then
        registries = registries or make_registries(now)
        registry = registry or registries.open(key, period)
        registries.replace(registry, value and (stored + windows) * period or 0, (slot + windows) * period)
        registries.write()
        keys = keys + registry.keys
      end
    end
  end
end
return pack('<i7i7i7i7', micros, admitted + 65536 * keys, current, previous)
