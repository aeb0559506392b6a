BEGIN TRANSACTION;
CREATE TABLE events (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    at   REAL NOT NULL,
    job  INTEGER,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1.79606915388669705394e+09,1,'submitted','{}');
INSERT INTO "events" VALUES(2,1.79606915388669705394e+09,2,'submitted','{}');
INSERT INTO "events" VALUES(3,1.79606915388669705394e+09,3,'submitted','{}');
INSERT INTO "events" VALUES(4,1.79606915388669705394e+09,4,'submitted','{}');
INSERT INTO "events" VALUES(5,1.79606915388669705394e+09,5,'submitted','{}');
INSERT INTO "events" VALUES(6,3.0,2,'ended','{"state":"running"}');
INSERT INTO "events" VALUES(7,3.0,3,'ended','{"state":"succeeded","returncode":0}');
INSERT INTO "events" VALUES(8,3.0,4,'ended','{"state":"failed","returncode":1}');
INSERT INTO "events" VALUES(9,3.0,5,'ended','{"state":"cancelled","returncode":1}');
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE intents (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    kind  TEXT NOT NULL,
    job   INTEGER,
    value TEXT,
    at    REAL NOT NULL,
    done  REAL,
    error TEXT NOT NULL DEFAULT ''
);
CREATE TABLE jobs (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    kind      TEXT NOT NULL,
    state     TEXT NOT NULL,
    priority  INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    request   TEXT NOT NULL,
    tag       TEXT NOT NULL,
    owner     TEXT NOT NULL,
    command   TEXT NOT NULL,
    cwd       TEXT NOT NULL,
    origin    TEXT NOT NULL,
    submitted REAL NOT NULL,
    attempt   INTEGER NOT NULL DEFAULT 0,
    placement TEXT,
    started   REAL,
    ended     REAL,
    returncode INTEGER,
    reason    TEXT NOT NULL DEFAULT '',
    process   TEXT,
    asked     TEXT NOT NULL DEFAULT '',
    key       TEXT,
    retry_of  INTEGER
, expected REAL, latest REAL, learned REAL, sound INTEGER NOT NULL DEFAULT 0, peak INTEGER, learned_memory INTEGER, lacked INTEGER, frozen REAL NOT NULL DEFAULT 0, frozen_at REAL, resized TEXT, hold TEXT, loan TEXT);
INSERT INTO "jobs" VALUES(1,'script','queued',0,1,'{"preset":"one","gpus":null,"share":null,"memory":null,"slots":null,"eta":null,"priority":0,"after":[],"restartable":false,"preemptible":false,"resumable":false,"require":[],"burst":false}','was-queued','somebody','true','/','{"kind":"terminal","path":"","session":"tty1","agent":""}',1.79606915388669705394e+09,0,NULL,NULL,NULL,NULL,'',NULL,'',NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,0.0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(2,'script','running',0,2,'{"preset":"one","gpus":null,"share":null,"memory":null,"slots":null,"eta":null,"priority":0,"after":[],"restartable":false,"preemptible":false,"resumable":false,"require":[],"burst":false}','was-running','somebody','true','/','{"kind":"terminal","path":"","session":"tty1","agent":""}',1.79606915388669705394e+09,1,'{"grants":[{"gpu":"FAKE-0","compute":1000,"memory":17179869184,"whole":true}],"slots":2}',2.0,NULL,NULL,'','{"pid":1,"start":1,"boot":"an-earlier-boot"}','',NULL,NULL,NULL,NULL,NULL,0,8589934592,NULL,NULL,0.0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(3,'script','succeeded',0,3,'{"preset":"one","gpus":null,"share":null,"memory":null,"slots":null,"eta":null,"priority":0,"after":[],"restartable":false,"preemptible":false,"resumable":false,"require":[],"burst":false}','was-succeeded','somebody','true','/','{"kind":"terminal","path":"","session":"tty1","agent":""}',1.79606915388669705394e+09,1,'{"grants":[{"gpu":"FAKE-0","compute":1000,"memory":17179869184,"whole":true}],"slots":2}',2.0,3.0,0,'',NULL,'',NULL,NULL,NULL,NULL,NULL,0,8589934592,NULL,NULL,0.0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(4,'script','failed',0,4,'{"preset":"one","gpus":null,"share":null,"memory":null,"slots":null,"eta":null,"priority":0,"after":[],"restartable":false,"preemptible":false,"resumable":false,"require":[],"burst":false}','was-failed','somebody','true','/','{"kind":"terminal","path":"","session":"tty1","agent":""}',1.79606915388669705394e+09,1,'{"grants":[{"gpu":"FAKE-0","compute":1000,"memory":17179869184,"whole":true}],"slots":2}',2.0,3.0,1,'',NULL,'',NULL,NULL,NULL,NULL,NULL,0,8589934592,NULL,NULL,0.0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(5,'script','cancelled',0,5,'{"preset":"one","gpus":null,"share":null,"memory":null,"slots":null,"eta":null,"priority":0,"after":[],"restartable":false,"preemptible":false,"resumable":false,"require":[],"burst":false}','was-cancelled','somebody','true','/','{"kind":"terminal","path":"","session":"tty1","agent":""}',1.79606915388669705394e+09,1,'{"grants":[{"gpu":"FAKE-0","compute":1000,"memory":17179869184,"whole":true}],"slots":2}',2.0,3.0,1,'',NULL,'',NULL,NULL,NULL,NULL,NULL,0,8589934592,NULL,NULL,0.0,NULL,NULL,NULL,NULL);
CREATE TABLE placements (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job     INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    gpu     TEXT NOT NULL,
    compute INTEGER NOT NULL,
    memory  INTEGER NOT NULL,
    whole   INTEGER NOT NULL,
    slots   INTEGER NOT NULL,
    since   REAL NOT NULL,
    until   REAL
, frozen INTEGER NOT NULL DEFAULT 0, lent INTEGER NOT NULL DEFAULT 0);
CREATE TABLE specs (
    job  INTEGER PRIMARY KEY,
    spec TEXT NOT NULL
);
INSERT INTO "specs" VALUES(1,'{"kind":"script","program":"/bin/true","argv":["true"],"cwd":"/","env":{}}');
INSERT INTO "specs" VALUES(2,'{"kind":"script","program":"/bin/true","argv":["true"],"cwd":"/","env":{}}');
INSERT INTO "specs" VALUES(3,'{"kind":"script","program":"/bin/true","argv":["true"],"cwd":"/","env":{}}');
INSERT INTO "specs" VALUES(4,'{"kind":"script","program":"/bin/true","argv":["true"],"cwd":"/","env":{}}');
INSERT INTO "specs" VALUES(5,'{"kind":"script","program":"/bin/true","argv":["true"],"cwd":"/","env":{}}');
CREATE INDEX jobs_live ON jobs (state, id)
    WHERE state IN ('queued', 'starting', 'running', 'frozen', 'evicting');
CREATE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX events_job ON events (job, seq);
CREATE INDEX intents_open ON intents (id) WHERE done IS NULL;
CREATE INDEX placements_open ON placements (job) WHERE until IS NULL;
CREATE INDEX jobs_succeeded ON jobs (id) WHERE state = 'succeeded';
CREATE INDEX jobs_lacked ON jobs (id) WHERE lacked IS NOT NULL;
CREATE INDEX placements_until ON placements (until) WHERE until IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (ended, id, state) WHERE ended IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',5);
INSERT INTO "sqlite_sequence" VALUES('events',9);
COMMIT;
PRAGMA user_version = 7;
