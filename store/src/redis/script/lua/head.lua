-- Decides a batch of operations of any kind in one call. What it computes is defined in Rust, by the algorithms of
-- sluice-limiter and by decide and settle of sluice-store. The bytes of a value are those of sluice-limiter's records.
--
-- KEYS     the keys of all counters, each once
-- ARGV[1]  a MessagePack array of integers: the deadline in milliseconds of this server's clock; the number of limits; for each
--          limit the number of its rates, how many of its keys a partition takes (0: any number), and the length of the slots of
--          its registries of keys; and for each rate the number of requests and the tag. Then the operations:
--          0: a settlement: index of the key, instant of the charge in microseconds, additional charge, refund, number of slots that
--             the holder must have before it at least, index of the limit; then five parameters for each rate of the limit
--             (Rate::settlement_script_arguments);
--          2: a settlement of the overflow counter that was charged instead of the key: the same;
--          1: a check: number of counters, number of callers; for each counter the index of the key, the cost, and the index
--             of the limit; then five parameters for each rate of the limit (Rate::full_script_arguments);
--          3: a charge, which is made whether or not there is room: the same;
--          4: a reset: index of the key, index of the limit. Windows and logs stay without usage, and slots leave a mark;
--          5: a look at a reservation: index of the key of its ledger, and its id; 0 for the oldest;
--          6: the taking of a reservation out of its ledger: index of the key, its id, and how many numbers the operation has that
--             corrects its charge. This one follows, a settlement or a charge, and is made if there is the reservation.
-- reply    this server's time in microseconds. Then for a reset 0; for a settlement how many slots were missing and are held again,
--          or -3 if they were reset; for a look the id of the reservation, 0 if there
--          is none, its cost, and the instant of its charge in milliseconds and the microseconds beyond; for a taking 0 if there is
--          no such reservation, or else 1, after which follows what is returned for the correction; for a check the number of
--          admitted callers, and for each rate of each counter the state afterwards: slot, current count, previous count. A rate
--          with more than one
--          previous slot has a string instead of the previous count, with 6 bytes for each previous slot. A log has the newest
--          instant, the number of instants, and the instant that must leave before the cost fits. A concurrency limit has the
--          latest end of a lease, the number of slots in use, and 0. A block has its end or that of the newest denial, the number
--          of denials, and 1 if the client was blocked before the check. Reservations have the latest expiry, the sum of the costs,
--          and their number. After a soft rate follow the begin and the end of its
--          time above the number. Instead of all that, -1 if a key does not hold a string, and -2 if the string does not
--          consist of records. After all operations follow two numbers for each key that was created: 32 times the
--          index of the operation (from 0) and the index of the counter (from 0), and 2^32, to which the number of keys in its
--          partition is added if the key was counted there. If the partition was full, so that the overflow counter decided, the
--          second number is 0. After the deadline only the
--          time is returned, and nothing is written.
--
-- A partition is a limit's keys with one hash tag. When it is full, all its new keys share one counter: its overflow counter,
-- whose key is that of a counter with `overflow` instead of the hash. A key that has a value is known, and is not affected. A
-- peek creates nothing, and shows the counter that would decide. No check of a sidecar names a limit twice; if two counters of a
-- check met in one overflow counter, it would keep the charge of the last one.
--
-- All reads come before all writes, so an error leaves nothing half done. All numbers are integers below 2^53, where doubles
-- are exact. Then x % y is exact too, and (x - x % y) / y is the floor of x / y. Only a warm-up computes with fractions.
--
-- The parts after this one define: the codec of records, the algorithms, and the decisions. The last part runs the batch.

local call, spread = redis.call, unpack
local pack, unpack = struct.pack, struct.unpack
local sub, rep = string.sub, string.rep
local keys, a = KEYS, cmsgpack.unpack(ARGV[1])

local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
local fraction = micros % 1000
local now = (micros - fraction) / 1000
if now > a[1] then return {micros} end

-- The index of the first rate of each limit, and the properties of all rates. `rules` are the functions of its algorithm.
local first_rate, requests_of, tag_of, kind_of, period_of, rules_of = {1}, {}, {}, {}, {}, {}
-- For each limit how many keys a partition takes, and the length of the slots of its registries.
local most_of, grid_of = {}, {}

-- The lowest 13 bits of a tag without the width are the kind of the record; the rest is the period. Sliding windows have the
-- kinds 520 to 992: 512 + 8 * the number of previous slots. From FIRST_REQUEST on, each name stands for a layout, and the kinds
-- up to the next name are its variants, each 8 more.
local ONE_WINDOW, SPREAD, FIRST_REQUEST, LOG, BUCKET, WARM_UP, SOFT, CONCURRENCY, BLOCK, RESERVATIONS =
  1024, 1536, 2048, 2560, 3072, 3584, 4096, 4608, 5120, 5632
-- The functions that make the rules of a kind. Kinds without an entry are windows.
local makers = {}
local MAX_COUNT, MAX_PERIOD = 1099511627776, 31622400000

-- The reply, and the position of its next value.
local out, o = {micros}, 2

-- The state of each rate of a check, by the index of the rate within the check. `tail` holds the counts of further slots, the
-- instants of a log, the holders of a concurrency limit, or the reservations. `instant` and `used` are what else an algorithm remembers. The room
-- of a layout below BUCKET sets `tail`, and that of one below LOG `since` and `last` too: the former state is another check's.
local slot_of, current_of, previous_of, tail_of, since_of, last_of, instant_of, used_of = {}, {}, {}, {}, {}, {}, {}, {}

