/*M!999999\- enable the sandbox mode */ 
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `budget_changes` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `time` double NOT NULL,
  `budget` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `actor` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `kind` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `why` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `details` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`id`),
  KEY `budget_changes_time` (`cluster`,`time`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `budget_nodes` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `node` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `time` double NOT NULL,
  `body` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`cluster`,`node`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `budget_overrides` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `budget` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `watts` double NOT NULL,
  `end` double DEFAULT NULL,
  `actor` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `time` double NOT NULL,
  `reason` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`cluster`,`budget`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `budget_samples` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `budget` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `time` double NOT NULL,
  `span_s` double NOT NULL,
  `limit_watts` double DEFAULT NULL,
  `measured_watts` double DEFAULT NULL,
  `max_measured_watts` double DEFAULT NULL,
  `committed_watts` double NOT NULL,
  `capped_watts` double NOT NULL,
  `headroom_watts` double DEFAULT NULL,
  `over_s` double NOT NULL,
  PRIMARY KEY (`cluster`,`budget`,`time`),
  KEY `budget_samples_time` (`time`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `decisions` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  `submit` double NOT NULL,
  `time` double NOT NULL,
  `kind` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `why` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `details` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`id`),
  KEY `decisions_time` (`time`),
  KEY `decisions_job` (`job_id`,`submit`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `grid_series` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `quantity` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `provider` varchar(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `zone` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `unit` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `start` double NOT NULL,
  `end` double NOT NULL,
  `value` double NOT NULL,
  `fetched` double NOT NULL,
  PRIMARY KEY (`cluster`,`quantity`,`provider`,`zone`,`unit`,`start`),
  KEY `grid_series_end` (`quantity`,`end`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `history` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `kind` varbinary(8) NOT NULL,
  `end` double NOT NULL,
  `body` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `user` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `history_end` (`end`),
  KEY `history_user` (`user`,`end`),
  KEY `history_kind` (`kind`,`end`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `jobs` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  `submit` double NOT NULL,
  `display_id` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `name` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `account` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `partition` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `user` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `state` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `start` double DEFAULT NULL,
  `end` double DEFAULT NULL,
  `elapsed_s` double DEFAULT NULL,
  `nodes` bigint(20) DEFAULT NULL,
  `array_job_id` bigint(20) DEFAULT NULL,
  `array_task_id` bigint(20) DEFAULT NULL,
  `het_job_id` bigint(20) DEFAULT NULL,
  `het_offset` bigint(20) DEFAULT NULL,
  `finished` tinyint(1) NOT NULL,
  `updated` double NOT NULL,
  `time_limit_s` double DEFAULT NULL,
  `requested` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `learned` tinyint(1) NOT NULL DEFAULT 0,
  `tuning_learned` tinyint(1) NOT NULL DEFAULT 0,
  `qos` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `allocated` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `cluster` (`cluster`,`job_id`,`submit`),
  KEY `jobs_het` (`het_job_id`),
  KEY `jobs_unfinished` (`updated`),
  KEY `jobs_unlearned` (`updated`),
  KEY `jobs_array` (`array_job_id`),
  KEY `jobs_tuning_unlearned` (`updated`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `jobs` VALUES
(1,'c1',100,900,'100','job100','physics','cpu','alice','COMPLETED',1000,1100,100,1,NULL,NULL,NULL,NULL,1,1800000000,NULL,NULL,0,0,NULL,NULL),
(2,'c1',101,900,'101','job101','physics','cpu','bob','COMPLETED',1000,1100,100,1,NULL,NULL,NULL,NULL,1,1800000000,NULL,NULL,0,0,NULL,NULL);
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `node_periods` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `period_id` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `node` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `start` bigint(20) NOT NULL,
  `end` bigint(20) NOT NULL,
  `late_seconds` double NOT NULL,
  `uncertain_seconds` double NOT NULL,
  `received` double NOT NULL,
  `extra` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `cluster` (`cluster`,`node`,`start`),
  UNIQUE KEY `period_id` (`period_id`),
  KEY `node_periods_end` (`end`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `node_periods` VALUES
(1,'ffffffffffffffffffffffffffffffff','c1','n1',0,3600,0,0,9000,'{}');
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `nodes` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `node` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `last_end` double NOT NULL,
  `last_received` double NOT NULL,
  PRIMARY KEY (`cluster`,`node`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `nodes` VALUES
('c1','n1',1100,1200);
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `periods` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `node` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `start` bigint(20) NOT NULL,
  `end` bigint(20) NOT NULL,
  `kind` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  `restart_count` bigint(20) NOT NULL,
  `uid` bigint(20) DEFAULT NULL,
  `cpu_uj` bigint(20) DEFAULT NULL,
  `dram_uj` bigint(20) DEFAULT NULL,
  `gpu_uj` bigint(20) DEFAULT NULL,
  `other_uj` bigint(20) DEFAULT NULL,
  `total_uj` bigint(20) NOT NULL,
  `usage_group` bigint(20) DEFAULT NULL,
  PRIMARY KEY (`cluster`,`node`,`start`,`kind`,`job_id`,`restart_count`),
  KEY `periods_job` (`cluster`,`job_id`,`start`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `periods` VALUES
('c1','n1',0,3600,'idle',0,0,NULL,1000000,NULL,NULL,NULL,1000000,NULL),
('c1','n1',0,3600,'job',1,0,1000,3000000,NULL,NULL,NULL,3000000,NULL),
('c1','n1',0,3600,'unattributed',0,0,NULL,0,NULL,NULL,NULL,0,NULL);
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `predictions` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  `start` double NOT NULL,
  `predicted_s` double NOT NULL,
  PRIMARY KEY (`cluster`,`job_id`,`start`),
  KEY `predictions_start` (`start`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `quota_changes` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `time` double NOT NULL,
  `actor` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `account` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `user` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `why` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`id`),
  KEY `quota_changes_time` (`cluster`,`time`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `quotas` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `account` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `user` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `resource` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `period` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `start` double DEFAULT NULL,
  `end` double DEFAULT NULL,
  `amount` double NOT NULL,
  `unit` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `warn_percent` double DEFAULT NULL,
  `hold_percent` double DEFAULT NULL,
  `actor` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `time` double NOT NULL,
  `reason` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`cluster`,`account`,`user`,`resource`,`period`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `records` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `record_id` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `node` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  `restart_count` bigint(20) NOT NULL,
  `step` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `start` double NOT NULL,
  `end` double NOT NULL,
  `uid` bigint(20) NOT NULL,
  `user` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `account` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `partition` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `policy` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `energy_joules` double DEFAULT NULL,
  `received` double NOT NULL,
  `job` bigint(20) DEFAULT NULL,
  `body` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `node` (`node`,`job_id`,`start`,`step`,`restart_count`,`cluster`),
  UNIQUE KEY `record_id` (`record_id`),
  KEY `records_job` (`job`),
  KEY `records_account` (`account`,`end`),
  KEY `records_job_id` (`job_id`,`start`),
  KEY `records_end` (`end`),
  KEY `records_without_job` (`received`,`cluster`,`job_id`),
  KEY `records_uid` (`uid`,`end`),
  CONSTRAINT `records_ibfk_1` FOREIGN KEY (`job`) REFERENCES `jobs` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=5 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `records` VALUES
(1,'00000000000000000000000000000000','c1','n1',100,0,'',1000,1100,1000,'alice','physics','cpu','edp',50,1200,1,'{\"schema\":1,\"cluster\":\"c1\",\"node\":\"n1\",\"job_id\":100,\"uid\":1000,\"policy\":\"edp\",\"start\":1000.0,\"end\":1100.0,\"components\":[{\"name\":\"cpu\",\"energy_joules\":50.0,\"source\":\"powercap:intel-rapl\",\"quality\":\"measured\"},{\"name\":\"gpu[0]\",\"energy_joules\":null,\"source\":null,\"quality\":\"measured\"}],\"step\":null,\"restart_count\":0,\"sluid\":null,\"user\":null,\"partition\":null,\"model\":null,\"tag\":null,\"fingerprint\":null,\"requested\":{},\"applied\":[],\"devices\":[],\"cpus\":null,\"gpus\":[],\"mean_watts\":null,\"peak_watts\":null,\"seconds_above_cap\":null,\"throttled_seconds\":null,\"budget_capped_seconds\":null,\"uncertain_seconds\":0.0,\"tuning\":null,\"notes\":[],\"record_id\":\"00000000000000000000000000000000\"}'),
(2,'00000000000000000000000000000001','c1','n1',101,0,'',1000,1100,1000,'bob','physics','cpu','edp',50,1200,2,'{\"schema\":1,\"cluster\":\"c1\",\"node\":\"n1\",\"job_id\":101,\"uid\":1000,\"policy\":\"edp\",\"start\":1000.0,\"end\":1100.0,\"components\":[{\"name\":\"cpu\",\"energy_joules\":50.0,\"source\":\"powercap:intel-rapl\",\"quality\":\"measured\"},{\"name\":\"gpu[0]\",\"energy_joules\":null,\"source\":null,\"quality\":\"measured\"}],\"step\":null,\"restart_count\":0,\"sluid\":null,\"user\":null,\"partition\":null,\"model\":null,\"tag\":null,\"fingerprint\":null,\"requested\":{},\"applied\":[],\"devices\":[],\"cpus\":null,\"gpus\":[],\"mean_watts\":null,\"peak_watts\":null,\"seconds_above_cap\":null,\"throttled_seconds\":null,\"budget_capped_seconds\":null,\"uncertain_seconds\":0.0,\"tuning\":null,\"notes\":[],\"record_id\":\"00000000000000000000000000000001\"}'),
(3,'00000000000000000000000000000002','c1','n1',102,0,'',1000,1100,1000,NULL,NULL,NULL,'edp',50,1200,NULL,'{\"schema\":1,\"cluster\":\"c1\",\"node\":\"n1\",\"job_id\":102,\"uid\":1000,\"policy\":\"edp\",\"start\":1000.0,\"end\":1100.0,\"components\":[{\"name\":\"cpu\",\"energy_joules\":50.0,\"source\":\"powercap:intel-rapl\",\"quality\":\"measured\"},{\"name\":\"gpu[0]\",\"energy_joules\":null,\"source\":null,\"quality\":\"measured\"}],\"step\":null,\"restart_count\":0,\"sluid\":null,\"user\":null,\"partition\":null,\"model\":null,\"tag\":null,\"fingerprint\":null,\"requested\":{},\"applied\":[],\"devices\":[],\"cpus\":null,\"gpus\":[],\"mean_watts\":null,\"peak_watts\":null,\"seconds_above_cap\":null,\"throttled_seconds\":null,\"budget_capped_seconds\":null,\"uncertain_seconds\":0.0,\"tuning\":null,\"notes\":[],\"record_id\":\"00000000000000000000000000000002\"}'),
(4,'00000000000000000000000000000003','c1','n1',103,0,'',1000,1100,1000,NULL,NULL,NULL,'edp',50,1200,NULL,'{\"schema\":1,\"cluster\":\"c1\",\"node\":\"n1\",\"job_id\":103,\"uid\":1000,\"policy\":\"edp\",\"start\":1000.0,\"end\":1100.0,\"components\":[{\"name\":\"cpu\",\"energy_joules\":50.0,\"source\":\"powercap:intel-rapl\",\"quality\":\"measured\"},{\"name\":\"gpu[0]\",\"energy_joules\":null,\"source\":null,\"quality\":\"measured\"}],\"step\":null,\"restart_count\":0,\"sluid\":null,\"user\":null,\"partition\":null,\"model\":null,\"tag\":null,\"fingerprint\":null,\"requested\":{},\"applied\":[],\"devices\":[],\"cpus\":null,\"gpus\":[],\"mean_watts\":null,\"peak_watts\":null,\"seconds_above_cap\":null,\"throttled_seconds\":null,\"budget_capped_seconds\":null,\"uncertain_seconds\":0.0,\"tuning\":null,\"notes\":[],\"record_id\":\"00000000000000000000000000000003\"}');
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `schema_version` (
  `version` int(11) NOT NULL,
  `applied` double NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `schema_version` VALUES
(9,1795413458.266583);
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `traces` (
  `record` bigint(20) NOT NULL,
  `end` double NOT NULL,
  `body` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`record`),
  KEY `traces_end` (`end`),
  CONSTRAINT `traces_ibfk_1` FOREIGN KEY (`record`) REFERENCES `records` (`id`) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `traces` VALUES
(1,1003,'{\"start\":1000.0,\"interval_s\":1.0,\"columns\":{\"cpu\":\"eJxjYDhgz8Cg4MDA0OAAAA0DAiA=\"}}'),
(2,1003,'{\"start\":1000.0,\"interval_s\":1.0,\"columns\":{\"cpu\":\"eJxjYDhgz8Cg4MDA0OAAAA0DAiA=\"}}'),
(3,1003,'{\"start\":1000.0,\"interval_s\":1.0,\"columns\":{\"cpu\":\"eJxjYDhgz8Cg4MDA0OAAAA0DAiA=\"}}'),
(4,1003,'{\"start\":1000.0,\"interval_s\":1.0,\"columns\":{\"cpu\":\"eJxjYDhgz8Cg4MDA0OAAAA0DAiA=\"}}');
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `tuning_pins` (
  `owner` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `workload` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `hardware` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `point` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `pinned_by` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `time` double NOT NULL,
  PRIMARY KEY (`owner`,`workload`,`hardware`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `tuning_runs` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `job` bigint(20) NOT NULL,
  `owner` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `hardware` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `fingerprint` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `model` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin DEFAULT NULL,
  `workload` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `end` double NOT NULL,
  `body` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `job` (`job`),
  KEY `tuning_runs_workload` (`owner`,`workload`,`hardware`,`end`),
  KEY `tuning_runs_model` (`owner`,`model`,`hardware`,`end`),
  KEY `tuning_runs_end` (`end`),
  CONSTRAINT `tuning_runs_ibfk_1` FOREIGN KEY (`job`) REFERENCES `jobs` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `tuning_starts` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  `restart_count` bigint(20) NOT NULL,
  `hardware` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `owner` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `workload` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `exploration` tinyint(1) NOT NULL,
  `time` double NOT NULL,
  `body` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  PRIMARY KEY (`cluster`,`job_id`,`restart_count`,`hardware`),
  KEY `tuning_starts_time` (`time`),
  KEY `tuning_starts_workload` (`owner`,`workload`,`hardware`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_changed_jobs` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  PRIMARY KEY (`cluster`,`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `usage_changed_jobs` VALUES
('c1',100),
('c1',101),
('c1',102),
('c1',103);
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_days` (
  `start` bigint(20) NOT NULL,
  `end` bigint(20) NOT NULL,
  `usage_group` bigint(20) NOT NULL,
  `total_uj` bigint(20) NOT NULL,
  `cpu_uj` bigint(20) NOT NULL,
  `dram_uj` bigint(20) NOT NULL,
  `gpu_uj` bigint(20) NOT NULL,
  `other_uj` bigint(20) NOT NULL,
  `cpu_rows` bigint(20) NOT NULL,
  `dram_rows` bigint(20) NOT NULL,
  `gpu_rows` bigint(20) NOT NULL,
  `other_rows` bigint(20) NOT NULL,
  `cpu_seconds` bigint(20) NOT NULL,
  `gpu_seconds` bigint(20) NOT NULL,
  `node_seconds` bigint(20) NOT NULL,
  PRIMARY KEY (`start`,`end`,`usage_group`),
  KEY `usage_group` (`usage_group`),
  CONSTRAINT `usage_days_ibfk_1` FOREIGN KEY (`usage_group`) REFERENCES `usage_groups` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_groups` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `digest` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `kind` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `account` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `user` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `uid` bigint(20) DEFAULT NULL,
  `qos` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `partition` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `policy` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `tag` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `gpu_kind` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `cpus` bigint(20) DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `digest` (`digest`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_nodes` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `node` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `start` bigint(20) NOT NULL,
  `end` bigint(20) NOT NULL,
  PRIMARY KEY (`cluster`,`node`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_runs` (
  `job` bigint(20) NOT NULL,
  `usage_group` bigint(20) NOT NULL,
  `start` bigint(20) NOT NULL,
  `end` bigint(20) NOT NULL,
  `cpus` bigint(20) NOT NULL,
  `gpus` bigint(20) NOT NULL,
  PRIMARY KEY (`job`),
  KEY `usage_group` (`usage_group`),
  KEY `usage_runs_end` (`end`),
  CONSTRAINT `usage_runs_ibfk_1` FOREIGN KEY (`job`) REFERENCES `jobs` (`id`),
  CONSTRAINT `usage_runs_ibfk_2` FOREIGN KEY (`usage_group`) REFERENCES `usage_groups` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_state` (
  `name` varchar(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `value` bigint(20) NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_sums` (
  `start` bigint(20) NOT NULL,
  `end` bigint(20) NOT NULL,
  `usage_group` bigint(20) NOT NULL,
  `total_uj` bigint(20) NOT NULL,
  `cpu_uj` bigint(20) NOT NULL,
  `dram_uj` bigint(20) NOT NULL,
  `gpu_uj` bigint(20) NOT NULL,
  `other_uj` bigint(20) NOT NULL,
  `cpu_rows` bigint(20) NOT NULL,
  `dram_rows` bigint(20) NOT NULL,
  `gpu_rows` bigint(20) NOT NULL,
  `other_rows` bigint(20) NOT NULL,
  `cpu_seconds` bigint(20) NOT NULL,
  `gpu_seconds` bigint(20) NOT NULL,
  `node_seconds` bigint(20) NOT NULL,
  PRIMARY KEY (`start`,`end`,`usage_group`),
  KEY `usage_group` (`usage_group`),
  CONSTRAINT `usage_sums_ibfk_1` FOREIGN KEY (`usage_group`) REFERENCES `usage_groups` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `usage_unknown_jobs` (
  `cluster` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `job_id` bigint(20) NOT NULL,
  `restart_count` bigint(20) NOT NULL,
  `start` bigint(20) NOT NULL,
  `end` bigint(20) NOT NULL,
  `since` double NOT NULL,
  PRIMARY KEY (`cluster`,`job_id`,`restart_count`),
  KEY `usage_unknown_jobs_since` (`since`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
