-- Who wrote to a user is found by going from sender to sender of one destination. All that these indexes are for names both, so
-- their order is free, and a message costs as many entries as before.

CREATE INDEX messages_from ON messages (destination, sender, created_at, id) WHERE kind = 2;
DROP INDEX messages_between;
ALTER INDEX messages_from RENAME TO messages_between;
CREATE INDEX archived_messages_from ON archived_messages (destination, sender, created_at, id) WHERE kind = 2;
DROP INDEX archived_messages_between;
ALTER INDEX archived_messages_from RENAME TO archived_messages_between;
