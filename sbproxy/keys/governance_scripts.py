"""The Lua of the Redis tier: the laws of ``core.ledger``, each script one atomic step over all counters of one key.

Needs Redis 5 or later. All keys of one virtual key share a hash tag, so a Redis cluster keeps them on one node.
"""

from __future__ import annotations

KEY_PARTS = ("books", "open", "leases", "done", "done_at")
"""Per virtual key: its counters; id -> what is held; id -> end of its lease; id -> how it ended; id -> until when kept.

Every script takes them as KEYS in this order, and as ARGV first the time in ms (-1 is the server's own), then the
lease and the retention in ms.
"""

_PRELUDE = """
local books, open, leases, done, done_at = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, lease_ms, retention_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if now < 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Numbers become text in full: Lua's own way keeps 14 digits.
local function int(n) return string.format('%.0f', n) end
local function get(field) return tonumber(redis.call('HGET', books, field) or '0') end
local function add(field, n) if n ~= 0 then redis.call('HINCRBY', books, field, int(n)) end end

-- Time that never goes back: half as fast while it is ahead of a clock that was set back.
local at, seen = get('clock'), get('clock_seen')
if now >= at then at = now
elseif now > seen then at = math.max(now, at + math.floor((now - seen) / 2)) end

local function count(held, kind, requests, tokens, micro_usd)
  local buckets = {'life'}
  if get('window_start') == held.window then buckets[#buckets + 1] = 'window' end
  if held.turn == '*' or (held.turn ~= '' and get('turn') == tonumber(held.turn)) then
    buckets[#buckets + 1] = 'span'
  end
  for _, bucket in ipairs(buckets) do
    add(bucket .. kind .. 'requests', requests)
    add(bucket .. kind .. 'tokens', tokens)
    add(bucket .. kind .. 'micro_usd', micro_usd)
  end
end

local function remember(id, how)
  redis.call('HSET', done, id, how)
  redis.call('ZADD', done_at, int(now + retention_ms), id)
  redis.call('PEXPIRE', done, int(retention_ms))
  redis.call('PEXPIRE', done_at, int(retention_ms))
end

-- What is held for a reservation, which is open no more after this; nil when it was not.
local function take_open(id)
  local text = redis.call('HGET', open, id)
  if not text then return nil end
  redis.call('HDEL', open, id)
  redis.call('ZREM', leases, id)
  local window, turn, tokens, micro_usd = string.match(text, '^(%d+)|(%d*)|(%d+)|(%d+)$')
  local held = {window = tonumber(window), turn = turn, tokens = tonumber(tokens), micro_usd = tonumber(micro_usd)}
  count(held, '_held_', -1, -held.tokens, -held.micro_usd)
  return held, text
end

-- The process behind a lease that ran out may have had its answer whole: its ceiling is booked, never less.
local function sweep()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', int(now), 'LIMIT', 0, 100)) do
    local held, text = take_open(id)
    if held then
      count(held, '_used_', 1, held.tokens, held.micro_usd)
      add('estimated_tokens', held.tokens)
      add('estimated_micro_usd', held.micro_usd)
      remember(id, text)
    else
      redis.call('ZREM', leases, id)
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', done_at, '-inf', int(now), 'LIMIT', 0, 100)) do
    redis.call('ZREM', done_at, id)
    redis.call('HDEL', done, id)
  end
end
"""

TAKE = (
    _PRELUDE
    + """
-- ARGV: 4 id, 5 tokens, 6 micro-USD, 7-10 the limits (-1 is none), 11-12 name ('' is none) and start of the span
local id, tokens, micro_usd = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
sweep()
if redis.call('HEXISTS', done, id) == 1 then return {'ended'} end
redis.call('HSET', books, 'clock', int(at), 'clock_seen', int(now))

local window = math.floor(at / 60000) * 60
if window > get('window_start') then
  redis.call('HDEL', books, 'window_used_requests', 'window_used_tokens', 'window_used_micro_usd',
    'window_held_requests', 'window_held_tokens', 'window_held_micro_usd')
  redis.call('HSET', books, 'window_start', int(window))
end
window = get('window_start')

local budget, turn = 'life', ''
if ARGV[11] ~= '' then
  budget = 'span'
  local begin = tonumber(ARGV[12])
  -- A process whose clock is behind does not open the span of yesterday again.
  if redis.call('HGET', books, 'span_name') ~= ARGV[11] or begin > get('span_start') then
    redis.call('HDEL', books, 'span_used_requests', 'span_used_tokens', 'span_used_micro_usd',
      'span_held_requests', 'span_held_tokens', 'span_held_micro_usd')
    redis.call('HSET', books, 'span_name', ARGV[11], 'span_start', int(begin))
    add('turn', 1)
  end
  turn = redis.call('HGET', books, 'turn')
end

local retry_s = math.max(1, math.ceil(((window + 60) * 1000 - at) * (at > now and 2 or 1) / 1000))
local checks = {
  {'max_tokens', ARGV[9], budget, 'tokens', tokens, -1},
  {'max_micro_usd', ARGV[10], budget, 'micro_usd', micro_usd, -1},
  {'requests_per_minute', ARGV[7], 'window', 'requests', 1, retry_s},
  {'tokens_per_minute', ARGV[8], 'window', 'tokens', tokens, retry_s},
}
for _, check in ipairs(checks) do
  local limit = tonumber(check[2])
  if limit >= 0 then
    local used, reserved = get(check[3] .. '_used_' .. check[4]), get(check[3] .. '_held_' .. check[4])
    if used + reserved + check[5] > limit or used >= limit then
      return {'refused', check[1], used, reserved, check[6]}
    end
  end
end

redis.call('HSET', open, id, int(window) .. '|' .. turn .. '|' .. int(tokens) .. '|' .. int(micro_usd))
redis.call('ZADD', leases, int(now + lease_ms), id)
count({window = window, turn = turn}, '_held_', 1, tokens, micro_usd)
local function both(bucket, what) return get(bucket .. '_used_' .. what) + get(bucket .. '_held_' .. what) end
return {'held', window, turn, both('window', 'requests'), both('window', 'tokens'),
  both('life', 'tokens'), both('life', 'micro_usd'), both('span', 'tokens'), both('span', 'micro_usd')}
"""
)
"""``{"held", window, turn, six sums for an outage}``, ``{"refused", counter, used, reserved, retry seconds or -1}``,
or ``{"ended"}`` when the release of this id was quicker."""

END = (
    _PRELUDE
    + """
-- ARGV: 4 id, 5 "settle" or "release", 6-7 tokens and micro-USD used, 8 "1" for an estimate,
-- 9 "1" to book also what is not known here, 10-11 window and turn ("*" is the span of now) to book that in
local id, settled, tokens, micro_usd = ARGV[4], ARGV[5] == 'settle', tonumber(ARGV[6]), tonumber(ARGV[7])
local requests = settled and 1 or 0
local estimate = ARGV[8] == '1' and 1 or 0
sweep()
local before = redis.call('HGET', done, id)
if before == 'ended' then return 'again' end
local held = take_open(id)
if before then
  -- Its lease had run out: what was booked then is replaced by what it was.
  local window, turn, was_tokens, was_micro_usd = string.match(before, '^(%d+)|(%d*)|(%d+)|(%d+)$')
  held = {window = tonumber(window), turn = turn}
  count(held, '_used_', requests - 1, tokens - was_tokens, micro_usd - was_micro_usd)
  add('estimated_tokens', estimate * tokens - was_tokens)
  add('estimated_micro_usd', estimate * micro_usd - was_micro_usd)
elseif settled and (held or ARGV[9] == '1') then
  count(held or {window = tonumber(ARGV[10]), turn = ARGV[11]}, '_used_', 1, tokens, micro_usd)
  add('estimated_tokens', estimate * tokens)
  add('estimated_micro_usd', estimate * micro_usd)
end
remember(id, 'ended')
return 'booked'
"""
)

RENEW = (
    _PRELUDE
    + """
-- ARGV: 4 id
if redis.call('ZSCORE', leases, ARGV[4]) then
  redis.call('ZADD', leases, int(now + lease_ms), ARGV[4])
  return 1
end
return 0
"""
)

USAGE = (
    _PRELUDE
    + """
sweep()
return {at, redis.call('HGETALL', books)}
"""
)
"""The time in ms that windows go by, and every counter by name."""

FORGET = (
    _PRELUDE
    + """
for _, id in ipairs(redis.call('HKEYS', open)) do remember(id, 'ended') end
redis.call('DEL', books, open, leases)
"""
)
"""What is open then ends without effect."""
