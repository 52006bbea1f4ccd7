--
-- PostgreSQL database dump
--

\restrict TXcW9WE06Tdlws6MXKcF47QBQKsR3Vd6COW6Yj0CTIOmKAtjv7QrHXDeeO1aSDc

-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: budget_changes; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.budget_changes (
    id bigint NOT NULL,
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    "time" double precision NOT NULL,
    budget character varying(255) COLLATE pg_catalog."C",
    actor character varying(255) COLLATE pg_catalog."C",
    kind character varying(255) NOT NULL COLLATE pg_catalog."C",
    why text NOT NULL COLLATE pg_catalog."C",
    details text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: budget_changes_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.budget_changes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: budget_changes_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.budget_changes_id_seq OWNED BY public.budget_changes.id;


--
-- Name: budget_nodes; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.budget_nodes (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    node character varying(255) NOT NULL COLLATE pg_catalog."C",
    "time" double precision NOT NULL,
    body text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: budget_overrides; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.budget_overrides (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    budget character varying(255) NOT NULL COLLATE pg_catalog."C",
    watts double precision NOT NULL,
    "end" double precision,
    actor character varying(255) NOT NULL COLLATE pg_catalog."C",
    "time" double precision NOT NULL,
    reason text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: budget_samples; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.budget_samples (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    budget character varying(255) NOT NULL COLLATE pg_catalog."C",
    "time" double precision NOT NULL,
    span_s double precision NOT NULL,
    limit_watts double precision,
    measured_watts double precision,
    max_measured_watts double precision,
    committed_watts double precision NOT NULL,
    capped_watts double precision NOT NULL,
    headroom_watts double precision,
    over_s double precision NOT NULL
);


--
-- Name: decisions; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.decisions (
    id bigint NOT NULL,
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    submit double precision NOT NULL,
    "time" double precision NOT NULL,
    kind character varying(255) NOT NULL COLLATE pg_catalog."C",
    why text NOT NULL COLLATE pg_catalog."C",
    details text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: decisions_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.decisions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: decisions_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.decisions_id_seq OWNED BY public.decisions.id;


--
-- Name: grid_series; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.grid_series (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    quantity character varying(16) NOT NULL COLLATE pg_catalog."C",
    provider character varying(32) NOT NULL COLLATE pg_catalog."C",
    zone character varying(64) NOT NULL COLLATE pg_catalog."C",
    unit character varying(16) NOT NULL COLLATE pg_catalog."C",
    start double precision NOT NULL,
    "end" double precision NOT NULL,
    value double precision NOT NULL,
    fetched double precision NOT NULL
);


--
-- Name: history; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.history (
    id bigint NOT NULL,
    kind bytea NOT NULL,
    "end" double precision NOT NULL,
    body text NOT NULL COLLATE pg_catalog."C",
    "user" character varying(255) COLLATE pg_catalog."C"
);


--
-- Name: history_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.history_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: history_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.history_id_seq OWNED BY public.history.id;


--
-- Name: jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.jobs (
    id bigint NOT NULL,
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    submit double precision NOT NULL,
    display_id character varying(255) NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    account character varying(255) COLLATE pg_catalog."C",
    partition character varying(255) COLLATE pg_catalog."C",
    "user" character varying(255) COLLATE pg_catalog."C",
    state character varying(255) NOT NULL COLLATE pg_catalog."C",
    start double precision,
    "end" double precision,
    elapsed_s double precision,
    nodes bigint,
    array_job_id bigint,
    array_task_id bigint,
    het_job_id bigint,
    het_offset bigint,
    finished boolean NOT NULL,
    updated double precision NOT NULL,
    time_limit_s double precision,
    requested text COLLATE pg_catalog."C",
    learned boolean DEFAULT false NOT NULL,
    tuning_learned boolean DEFAULT false NOT NULL,
    qos character varying(255) COLLATE pg_catalog."C",
    allocated text COLLATE pg_catalog."C"
);


--
-- Name: jobs_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: jobs_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.jobs_id_seq OWNED BY public.jobs.id;


--
-- Name: node_periods; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.node_periods (
    id bigint NOT NULL,
    period_id character varying(255) NOT NULL COLLATE pg_catalog."C",
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    node character varying(255) NOT NULL COLLATE pg_catalog."C",
    start bigint NOT NULL,
    "end" bigint NOT NULL,
    late_seconds double precision NOT NULL,
    uncertain_seconds double precision NOT NULL,
    received double precision NOT NULL,
    extra text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: node_periods_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.node_periods_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: node_periods_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.node_periods_id_seq OWNED BY public.node_periods.id;


--
-- Name: nodes; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.nodes (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    node character varying(255) NOT NULL COLLATE pg_catalog."C",
    last_end double precision NOT NULL,
    last_received double precision NOT NULL
);


--
-- Name: periods; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.periods (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    node character varying(255) NOT NULL COLLATE pg_catalog."C",
    start bigint NOT NULL,
    "end" bigint NOT NULL,
    kind character varying(16) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    restart_count bigint NOT NULL,
    uid bigint,
    cpu_uj bigint,
    dram_uj bigint,
    gpu_uj bigint,
    other_uj bigint,
    total_uj bigint NOT NULL,
    usage_group bigint
);


--
-- Name: predictions; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.predictions (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    start double precision NOT NULL,
    predicted_s double precision NOT NULL
);


--
-- Name: quota_changes; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.quota_changes (
    id bigint NOT NULL,
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    "time" double precision NOT NULL,
    actor character varying(255) NOT NULL COLLATE pg_catalog."C",
    account character varying(255) NOT NULL COLLATE pg_catalog."C",
    "user" character varying(255) NOT NULL COLLATE pg_catalog."C",
    why text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: quota_changes_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.quota_changes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: quota_changes_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.quota_changes_id_seq OWNED BY public.quota_changes.id;


--
-- Name: quotas; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.quotas (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    account character varying(255) NOT NULL COLLATE pg_catalog."C",
    "user" character varying(255) NOT NULL COLLATE pg_catalog."C",
    resource character varying(16) NOT NULL COLLATE pg_catalog."C",
    period character varying(16) NOT NULL COLLATE pg_catalog."C",
    start double precision,
    "end" double precision,
    amount double precision NOT NULL,
    unit character varying(16) NOT NULL COLLATE pg_catalog."C",
    warn_percent double precision,
    hold_percent double precision,
    actor character varying(255) NOT NULL COLLATE pg_catalog."C",
    "time" double precision NOT NULL,
    reason text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: records; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.records (
    id bigint NOT NULL,
    record_id character varying(255) NOT NULL COLLATE pg_catalog."C",
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    node character varying(255) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    restart_count bigint NOT NULL,
    step character varying(64) NOT NULL COLLATE pg_catalog."C",
    start double precision NOT NULL,
    "end" double precision NOT NULL,
    uid bigint NOT NULL,
    "user" character varying(255) COLLATE pg_catalog."C",
    account character varying(255) COLLATE pg_catalog."C",
    partition character varying(255) COLLATE pg_catalog."C",
    policy character varying(255) NOT NULL COLLATE pg_catalog."C",
    energy_joules double precision,
    received double precision NOT NULL,
    job bigint,
    body text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: records_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.records_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: records_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.records_id_seq OWNED BY public.records.id;


--
-- Name: schema_version; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.schema_version (
    version integer NOT NULL,
    applied double precision NOT NULL
);


--
-- Name: traces; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.traces (
    record bigint NOT NULL,
    "end" double precision NOT NULL,
    body text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: tuning_pins; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tuning_pins (
    owner character varying(255) NOT NULL COLLATE pg_catalog."C",
    workload character varying(255) NOT NULL COLLATE pg_catalog."C",
    hardware character varying(255) NOT NULL COLLATE pg_catalog."C",
    point text NOT NULL COLLATE pg_catalog."C",
    pinned_by character varying(255) NOT NULL COLLATE pg_catalog."C",
    "time" double precision NOT NULL
);


--
-- Name: tuning_runs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tuning_runs (
    id bigint NOT NULL,
    job bigint NOT NULL,
    owner character varying(255) NOT NULL COLLATE pg_catalog."C",
    hardware character varying(255) NOT NULL COLLATE pg_catalog."C",
    fingerprint character varying(255) COLLATE pg_catalog."C",
    model character varying(255) COLLATE pg_catalog."C",
    workload character varying(255) NOT NULL COLLATE pg_catalog."C",
    "end" double precision NOT NULL,
    body text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: tuning_runs_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.tuning_runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: tuning_runs_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.tuning_runs_id_seq OWNED BY public.tuning_runs.id;


--
-- Name: tuning_starts; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tuning_starts (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    restart_count bigint NOT NULL,
    hardware character varying(255) NOT NULL COLLATE pg_catalog."C",
    owner character varying(255) NOT NULL COLLATE pg_catalog."C",
    workload character varying(255) NOT NULL COLLATE pg_catalog."C",
    exploration boolean NOT NULL,
    "time" double precision NOT NULL,
    body text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: usage_changed_jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_changed_jobs (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL
);


--
-- Name: usage_days; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_days (
    start bigint NOT NULL,
    "end" bigint NOT NULL,
    usage_group bigint NOT NULL,
    total_uj bigint NOT NULL,
    cpu_uj bigint NOT NULL,
    dram_uj bigint NOT NULL,
    gpu_uj bigint NOT NULL,
    other_uj bigint NOT NULL,
    cpu_rows bigint NOT NULL,
    dram_rows bigint NOT NULL,
    gpu_rows bigint NOT NULL,
    other_rows bigint NOT NULL,
    cpu_seconds bigint NOT NULL,
    gpu_seconds bigint NOT NULL,
    node_seconds bigint NOT NULL
);


--
-- Name: usage_groups; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_groups (
    id bigint NOT NULL,
    digest character varying(64) NOT NULL COLLATE pg_catalog."C",
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    kind character varying(16) NOT NULL COLLATE pg_catalog."C",
    account character varying(255) NOT NULL COLLATE pg_catalog."C",
    "user" character varying(255) NOT NULL COLLATE pg_catalog."C",
    uid bigint,
    qos character varying(255) NOT NULL COLLATE pg_catalog."C",
    partition character varying(255) NOT NULL COLLATE pg_catalog."C",
    policy character varying(255) NOT NULL COLLATE pg_catalog."C",
    tag text NOT NULL COLLATE pg_catalog."C",
    gpu_kind text NOT NULL COLLATE pg_catalog."C",
    cpus bigint
);


--
-- Name: usage_groups_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.usage_groups_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: usage_groups_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.usage_groups_id_seq OWNED BY public.usage_groups.id;


--
-- Name: usage_nodes; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_nodes (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    node character varying(255) NOT NULL COLLATE pg_catalog."C",
    start bigint NOT NULL,
    "end" bigint NOT NULL
);


--
-- Name: usage_runs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_runs (
    job bigint NOT NULL,
    usage_group bigint NOT NULL,
    start bigint NOT NULL,
    "end" bigint NOT NULL,
    cpus bigint NOT NULL,
    gpus bigint NOT NULL
);


--
-- Name: usage_state; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_state (
    name character varying(16) NOT NULL COLLATE pg_catalog."C",
    value bigint NOT NULL
);


--
-- Name: usage_sums; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_sums (
    start bigint NOT NULL,
    "end" bigint NOT NULL,
    usage_group bigint NOT NULL,
    total_uj bigint NOT NULL,
    cpu_uj bigint NOT NULL,
    dram_uj bigint NOT NULL,
    gpu_uj bigint NOT NULL,
    other_uj bigint NOT NULL,
    cpu_rows bigint NOT NULL,
    dram_rows bigint NOT NULL,
    gpu_rows bigint NOT NULL,
    other_rows bigint NOT NULL,
    cpu_seconds bigint NOT NULL,
    gpu_seconds bigint NOT NULL,
    node_seconds bigint NOT NULL
);


--
-- Name: usage_unknown_jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_unknown_jobs (
    cluster character varying(64) NOT NULL COLLATE pg_catalog."C",
    job_id bigint NOT NULL,
    restart_count bigint NOT NULL,
    start bigint NOT NULL,
    "end" bigint NOT NULL,
    since double precision NOT NULL
);


--
-- Name: budget_changes id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.budget_changes ALTER COLUMN id SET DEFAULT nextval('public.budget_changes_id_seq'::regclass);


--
-- Name: decisions id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.decisions ALTER COLUMN id SET DEFAULT nextval('public.decisions_id_seq'::regclass);


--
-- Name: history id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.history ALTER COLUMN id SET DEFAULT nextval('public.history_id_seq'::regclass);


--
-- Name: jobs id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs ALTER COLUMN id SET DEFAULT nextval('public.jobs_id_seq'::regclass);


--
-- Name: node_periods id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.node_periods ALTER COLUMN id SET DEFAULT nextval('public.node_periods_id_seq'::regclass);


--
-- Name: quota_changes id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.quota_changes ALTER COLUMN id SET DEFAULT nextval('public.quota_changes_id_seq'::regclass);


--
-- Name: records id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.records ALTER COLUMN id SET DEFAULT nextval('public.records_id_seq'::regclass);


--
-- Name: tuning_runs id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tuning_runs ALTER COLUMN id SET DEFAULT nextval('public.tuning_runs_id_seq'::regclass);


--
-- Name: usage_groups id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_groups ALTER COLUMN id SET DEFAULT nextval('public.usage_groups_id_seq'::regclass);


--
-- Data for Name: budget_changes; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: budget_nodes; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: budget_overrides; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: budget_samples; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: decisions; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: grid_series; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: history; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES (1, 'c1', 100, 900, '100', 'job100', 'physics', 'cpu', 'alice', 'COMPLETED', 1000, 1100, 100, 1, NULL, NULL, NULL, NULL, true, 1800000000, NULL, NULL, false, false, NULL, NULL);
INSERT INTO public.jobs VALUES (2, 'c1', 101, 900, '101', 'job101', 'physics', 'cpu', 'bob', 'COMPLETED', 1000, 1100, 100, 1, NULL, NULL, NULL, NULL, true, 1800000000, NULL, NULL, false, false, NULL, NULL);


--
-- Data for Name: node_periods; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.node_periods VALUES (1, 'ffffffffffffffffffffffffffffffff', 'c1', 'n1', 0, 3600, 0, 0, 9000, '{}');


--
-- Data for Name: nodes; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.nodes VALUES ('c1', 'n1', 1100, 1200);


--
-- Data for Name: periods; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.periods VALUES ('c1', 'n1', 0, 3600, 'job', 1, 0, 1000, 3000000, NULL, NULL, NULL, 3000000, NULL);
INSERT INTO public.periods VALUES ('c1', 'n1', 0, 3600, 'idle', 0, 0, NULL, 1000000, NULL, NULL, NULL, 1000000, NULL);
INSERT INTO public.periods VALUES ('c1', 'n1', 0, 3600, 'unattributed', 0, 0, NULL, 0, NULL, NULL, NULL, 0, NULL);


--
-- Data for Name: predictions; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: quota_changes; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: quotas; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: records; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.records VALUES (3, '00000000000000000000000000000002', 'c1', 'n1', 102, 0, '', 1000, 1100, 1000, NULL, NULL, NULL, 'edp', 50, 1200, NULL, '{"schema":1,"cluster":"c1","node":"n1","job_id":102,"uid":1000,"policy":"edp","start":1000.0,"end":1100.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000002"}');
INSERT INTO public.records VALUES (4, '00000000000000000000000000000003', 'c1', 'n1', 103, 0, '', 1000, 1100, 1000, NULL, NULL, NULL, 'edp', 50, 1200, NULL, '{"schema":1,"cluster":"c1","node":"n1","job_id":103,"uid":1000,"policy":"edp","start":1000.0,"end":1100.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000003"}');
INSERT INTO public.records VALUES (1, '00000000000000000000000000000000', 'c1', 'n1', 100, 0, '', 1000, 1100, 1000, 'alice', 'physics', 'cpu', 'edp', 50, 1200, 1, '{"schema":1,"cluster":"c1","node":"n1","job_id":100,"uid":1000,"policy":"edp","start":1000.0,"end":1100.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000000"}');
INSERT INTO public.records VALUES (2, '00000000000000000000000000000001', 'c1', 'n1', 101, 0, '', 1000, 1100, 1000, 'bob', 'physics', 'cpu', 'edp', 50, 1200, 2, '{"schema":1,"cluster":"c1","node":"n1","job_id":101,"uid":1000,"policy":"edp","start":1000.0,"end":1100.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000001"}');


--
-- Data for Name: schema_version; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.schema_version VALUES (9, 1795413463.1281369);


--
-- Data for Name: traces; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.traces VALUES (1, 1003, '{"start":1000.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');
INSERT INTO public.traces VALUES (2, 1003, '{"start":1000.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');
INSERT INTO public.traces VALUES (3, 1003, '{"start":1000.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');
INSERT INTO public.traces VALUES (4, 1003, '{"start":1000.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');


--
-- Data for Name: tuning_pins; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: tuning_runs; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: tuning_starts; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: usage_changed_jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.usage_changed_jobs VALUES ('c1', 100);
INSERT INTO public.usage_changed_jobs VALUES ('c1', 101);
INSERT INTO public.usage_changed_jobs VALUES ('c1', 102);
INSERT INTO public.usage_changed_jobs VALUES ('c1', 103);


--
-- Data for Name: usage_days; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: usage_groups; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: usage_nodes; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: usage_runs; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: usage_state; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: usage_sums; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: usage_unknown_jobs; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Name: budget_changes_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.budget_changes_id_seq', 1, false);


--
-- Name: decisions_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.decisions_id_seq', 1, false);


--
-- Name: history_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.history_id_seq', 1, false);


--
-- Name: jobs_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.jobs_id_seq', 2, true);


--
-- Name: node_periods_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.node_periods_id_seq', 1, true);


--
-- Name: quota_changes_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.quota_changes_id_seq', 1, false);


--
-- Name: records_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.records_id_seq', 4, true);


--
-- Name: tuning_runs_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.tuning_runs_id_seq', 1, false);


--
-- Name: usage_groups_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.usage_groups_id_seq', 1, false);


--
-- Name: budget_changes budget_changes_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.budget_changes
    ADD CONSTRAINT budget_changes_pkey PRIMARY KEY (id);


--
-- Name: budget_nodes budget_nodes_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.budget_nodes
    ADD CONSTRAINT budget_nodes_pkey PRIMARY KEY (cluster, node);


--
-- Name: budget_overrides budget_overrides_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.budget_overrides
    ADD CONSTRAINT budget_overrides_pkey PRIMARY KEY (cluster, budget);


--
-- Name: budget_samples budget_samples_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.budget_samples
    ADD CONSTRAINT budget_samples_pkey PRIMARY KEY (cluster, budget, "time");


--
-- Name: decisions decisions_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT decisions_pkey PRIMARY KEY (id);


--
-- Name: grid_series grid_series_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.grid_series
    ADD CONSTRAINT grid_series_pkey PRIMARY KEY (cluster, quantity, provider, zone, unit, start);


--
-- Name: history history_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.history
    ADD CONSTRAINT history_pkey PRIMARY KEY (id);


--
-- Name: jobs jobs_cluster_job_id_submit_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_cluster_job_id_submit_key UNIQUE (cluster, job_id, submit);


--
-- Name: jobs jobs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);


--
-- Name: node_periods node_periods_cluster_node_start_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.node_periods
    ADD CONSTRAINT node_periods_cluster_node_start_key UNIQUE (cluster, node, start);


--
-- Name: node_periods node_periods_period_id_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.node_periods
    ADD CONSTRAINT node_periods_period_id_key UNIQUE (period_id);


--
-- Name: node_periods node_periods_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.node_periods
    ADD CONSTRAINT node_periods_pkey PRIMARY KEY (id);


--
-- Name: nodes nodes_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (cluster, node);


--
-- Name: periods periods_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.periods
    ADD CONSTRAINT periods_pkey PRIMARY KEY (cluster, node, start, kind, job_id, restart_count);


--
-- Name: predictions predictions_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.predictions
    ADD CONSTRAINT predictions_pkey PRIMARY KEY (cluster, job_id, start);


--
-- Name: quota_changes quota_changes_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.quota_changes
    ADD CONSTRAINT quota_changes_pkey PRIMARY KEY (id);


--
-- Name: quotas quotas_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.quotas
    ADD CONSTRAINT quotas_pkey PRIMARY KEY (cluster, account, "user", resource, period);


--
-- Name: records records_node_job_id_start_step_restart_count_cluster_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.records
    ADD CONSTRAINT records_node_job_id_start_step_restart_count_cluster_key UNIQUE (node, job_id, start, step, restart_count, cluster);


--
-- Name: records records_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.records
    ADD CONSTRAINT records_pkey PRIMARY KEY (id);


--
-- Name: records records_record_id_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.records
    ADD CONSTRAINT records_record_id_key UNIQUE (record_id);


--
-- Name: traces traces_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.traces
    ADD CONSTRAINT traces_pkey PRIMARY KEY (record);


--
-- Name: tuning_pins tuning_pins_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tuning_pins
    ADD CONSTRAINT tuning_pins_pkey PRIMARY KEY (owner, workload, hardware);


--
-- Name: tuning_runs tuning_runs_job_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tuning_runs
    ADD CONSTRAINT tuning_runs_job_key UNIQUE (job);


--
-- Name: tuning_runs tuning_runs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tuning_runs
    ADD CONSTRAINT tuning_runs_pkey PRIMARY KEY (id);


--
-- Name: tuning_starts tuning_starts_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tuning_starts
    ADD CONSTRAINT tuning_starts_pkey PRIMARY KEY (cluster, job_id, restart_count, hardware);


--
-- Name: usage_changed_jobs usage_changed_jobs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_changed_jobs
    ADD CONSTRAINT usage_changed_jobs_pkey PRIMARY KEY (cluster, job_id);


--
-- Name: usage_days usage_days_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_days
    ADD CONSTRAINT usage_days_pkey PRIMARY KEY (start, "end", usage_group);


--
-- Name: usage_groups usage_groups_digest_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_groups
    ADD CONSTRAINT usage_groups_digest_key UNIQUE (digest);


--
-- Name: usage_groups usage_groups_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_groups
    ADD CONSTRAINT usage_groups_pkey PRIMARY KEY (id);


--
-- Name: usage_nodes usage_nodes_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_nodes
    ADD CONSTRAINT usage_nodes_pkey PRIMARY KEY (cluster, node);


--
-- Name: usage_runs usage_runs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_runs
    ADD CONSTRAINT usage_runs_pkey PRIMARY KEY (job);


--
-- Name: usage_state usage_state_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_state
    ADD CONSTRAINT usage_state_pkey PRIMARY KEY (name);


--
-- Name: usage_sums usage_sums_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_sums
    ADD CONSTRAINT usage_sums_pkey PRIMARY KEY (start, "end", usage_group);


--
-- Name: usage_unknown_jobs usage_unknown_jobs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_unknown_jobs
    ADD CONSTRAINT usage_unknown_jobs_pkey PRIMARY KEY (cluster, job_id, restart_count);


--
-- Name: budget_changes_time; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX budget_changes_time ON public.budget_changes USING btree (cluster, "time");


--
-- Name: budget_samples_time; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX budget_samples_time ON public.budget_samples USING btree ("time");


--
-- Name: decisions_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX decisions_job ON public.decisions USING btree (job_id, submit);


--
-- Name: decisions_time; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX decisions_time ON public.decisions USING btree ("time");


--
-- Name: grid_series_end; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX grid_series_end ON public.grid_series USING btree (quantity, "end");


--
-- Name: history_end; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX history_end ON public.history USING btree ("end");


--
-- Name: history_kind; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX history_kind ON public.history USING btree (kind, "end");


--
-- Name: history_user; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX history_user ON public.history USING btree ("user", "end");


--
-- Name: jobs_array; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_array ON public.jobs USING btree (array_job_id) WHERE (array_job_id IS NOT NULL);


--
-- Name: jobs_het; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_het ON public.jobs USING btree (het_job_id) WHERE (het_job_id IS NOT NULL);


--
-- Name: jobs_tuning_unlearned; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_tuning_unlearned ON public.jobs USING btree (updated) WHERE (learned AND (NOT tuning_learned));


--
-- Name: jobs_unfinished; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_unfinished ON public.jobs USING btree (updated) WHERE (NOT finished);


--
-- Name: jobs_unlearned; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_unlearned ON public.jobs USING btree (updated) WHERE (finished AND (NOT learned));


--
-- Name: node_periods_end; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX node_periods_end ON public.node_periods USING btree ("end");


--
-- Name: periods_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX periods_job ON public.periods USING btree (cluster, job_id, start);


--
-- Name: predictions_start; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX predictions_start ON public.predictions USING btree (start);


--
-- Name: quota_changes_time; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX quota_changes_time ON public.quota_changes USING btree (cluster, "time");


--
-- Name: records_account; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX records_account ON public.records USING btree (account, "end") WHERE (account IS NOT NULL);


--
-- Name: records_end; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX records_end ON public.records USING btree ("end");


--
-- Name: records_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX records_job ON public.records USING btree (job) WHERE (job IS NOT NULL);


--
-- Name: records_job_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX records_job_id ON public.records USING btree (job_id, start);


--
-- Name: records_uid; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX records_uid ON public.records USING btree (uid, "end");


--
-- Name: records_without_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX records_without_job ON public.records USING btree (received, cluster, job_id) WHERE (job IS NULL);


--
-- Name: traces_end; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX traces_end ON public.traces USING btree ("end");


--
-- Name: tuning_runs_end; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX tuning_runs_end ON public.tuning_runs USING btree ("end");


--
-- Name: tuning_runs_model; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX tuning_runs_model ON public.tuning_runs USING btree (owner, model, hardware, "end") WHERE (model IS NOT NULL);


--
-- Name: tuning_runs_workload; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX tuning_runs_workload ON public.tuning_runs USING btree (owner, workload, hardware, "end");


--
-- Name: tuning_starts_time; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX tuning_starts_time ON public.tuning_starts USING btree ("time");


--
-- Name: tuning_starts_workload; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX tuning_starts_workload ON public.tuning_starts USING btree (owner, workload, hardware) WHERE exploration;


--
-- Name: usage_runs_end; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX usage_runs_end ON public.usage_runs USING btree ("end");


--
-- Name: usage_unknown_jobs_since; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX usage_unknown_jobs_since ON public.usage_unknown_jobs USING btree (since);


--
-- Name: records records_job_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.records
    ADD CONSTRAINT records_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id);


--
-- Name: traces traces_record_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.traces
    ADD CONSTRAINT traces_record_fkey FOREIGN KEY (record) REFERENCES public.records(id) ON DELETE CASCADE;


--
-- Name: tuning_runs tuning_runs_job_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tuning_runs
    ADD CONSTRAINT tuning_runs_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id);


--
-- Name: usage_days usage_days_usage_group_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_days
    ADD CONSTRAINT usage_days_usage_group_fkey FOREIGN KEY (usage_group) REFERENCES public.usage_groups(id);


--
-- Name: usage_runs usage_runs_job_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_runs
    ADD CONSTRAINT usage_runs_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id);


--
-- Name: usage_runs usage_runs_usage_group_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_runs
    ADD CONSTRAINT usage_runs_usage_group_fkey FOREIGN KEY (usage_group) REFERENCES public.usage_groups(id);


--
-- Name: usage_sums usage_sums_usage_group_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_sums
    ADD CONSTRAINT usage_sums_usage_group_fkey FOREIGN KEY (usage_group) REFERENCES public.usage_groups(id);


--
-- PostgreSQL database dump complete
--

\unrestrict TXcW9WE06Tdlws6MXKcF47QBQKsR3Vd6COW6Yj0CTIOmKAtjv7QrHXDeeO1aSDc

