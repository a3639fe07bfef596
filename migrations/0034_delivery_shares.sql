-- What one caller has to be posted is found without a look at each of its hosts: by the caller's earliest, and by some hosts
-- chosen at random, which the order of hashes allows.

DROP INDEX webhook_deliveries_due;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (caller_id, endpoint_id, next_at) WHERE state = 0;
CREATE INDEX webhook_deliveries_hosts ON webhook_deliveries (endpoint_id, hashtextextended(lane, 0), lane, next_at) WHERE state = 0 AND lane <> '';

DROP INDEX message_live_posts;
CREATE INDEX message_live_posts ON message_live (caller_id, next_at) WHERE remaining_sends > 0 AND kind = 1;
CREATE INDEX message_live_hosts ON message_live (caller_id, hashtextextended(lane, 0), lane, next_at) WHERE remaining_sends > 0 AND kind = 1;
