-- No function writes another status. With one such row the conversations that have the message could not be read.
ALTER TABLE archived_messages ADD CONSTRAINT archived_messages_status CHECK (status BETWEEN 0 AND 2);
