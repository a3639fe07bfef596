-- The overview counts the newest reports of each sender app. A BRIN index costs a report almost nothing.
CREATE INDEX report_logs_created ON report_logs USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);
