PRAGMA application_id = 1397050949;
BEGIN TRANSACTION;
CREATE TABLE adjustment_permissions (
	cluster VARCHAR(64) NOT NULL, 
	uid INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	updated DOUBLE NOT NULL, 
	PRIMARY KEY (cluster, uid)
);
INSERT INTO "adjustment_permissions" VALUES('c1',1000,'workers=0..16,slowdown=5',5000.0);
CREATE TABLE adjustment_runs (
	cluster VARCHAR(64) NOT NULL, 
	job_id INTEGER NOT NULL, 
	restart_count INTEGER NOT NULL, 
	uid INTEGER NOT NULL, 
	workload VARCHAR(255) NOT NULL, 
	trial INTEGER, 
	submitted BOOLEAN NOT NULL, 
	offered TEXT NOT NULL, 
	requested TEXT NOT NULL, 
	created DOUBLE NOT NULL, 
	PRIMARY KEY (cluster, job_id, restart_count, uid)
);
INSERT INTO "adjustment_runs" VALUES('c1',119,0,1000,'9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',2,0,'{"workers": 8}','["workers"]',9000.0);
CREATE TABLE adjustment_trials (
	id INTEGER NOT NULL, 
	cluster VARCHAR(64) NOT NULL, 
	uid INTEGER NOT NULL, 
	workload VARCHAR(255) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	source VARCHAR(16) NOT NULL, 
	created DOUBLE NOT NULL, 
	decided DOUBLE, 
	body TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "adjustment_trials" VALUES(1,'c1',1000,'9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','kept','apply',6000.0,7000.0,'{"job":"110_4"}');
INSERT INTO "adjustment_trials" VALUES(2,'c1',1000,'9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','pending','auto',8000.0,NULL,'{}');
CREATE TABLE budget_changes (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        time REAL NOT NULL,
        budget TEXT,
        actor TEXT,
        kind TEXT NOT NULL,
        why TEXT NOT NULL,
        details TEXT NOT NULL
    );
INSERT INTO "budget_changes" VALUES(1,'c1',1500.0,'room','root','set','=cmd|''/c calc''!A1; DROP TABLE records; -- "€雪','{"watts": 1000000.0}');
CREATE TABLE budget_nodes (
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        time REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (cluster, node)
    ) WITHOUT ROWID;
INSERT INTO "budget_nodes" VALUES('c1','n1',1600.0,'{"watts":300}');
INSERT INTO "budget_nodes" VALUES('c1','n2',1600.0,'{}');
CREATE TABLE budget_overrides (
        cluster TEXT NOT NULL,
        budget TEXT NOT NULL,
        watts REAL NOT NULL,
        "end" REAL,
        actor TEXT NOT NULL,
        time REAL NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (cluster, budget)
    ) WITHOUT ROWID;
INSERT INTO "budget_overrides" VALUES('c1','room',1000000.0,NULL,'root',1500.0,'maintenance');
CREATE TABLE budget_samples (
        cluster TEXT NOT NULL,
        budget TEXT NOT NULL,
        time REAL NOT NULL,
        span_s REAL NOT NULL,
        limit_watts REAL,
        measured_watts REAL,
        max_measured_watts REAL,
        committed_watts REAL NOT NULL,
        capped_watts REAL NOT NULL,
        headroom_watts REAL,
        over_s REAL NOT NULL,
        PRIMARY KEY (cluster, budget, time)
    ) WITHOUT ROWID;
INSERT INTO "budget_samples" VALUES('c1','room',1000.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1010.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1020.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1030.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1040.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1050.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1060.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1070.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1080.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1090.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1100.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1110.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1120.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1130.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1140.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1150.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1160.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1170.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1180.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1190.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1200.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1210.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1220.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1230.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1240.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1250.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1260.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1270.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1280.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1290.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1300.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1310.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1320.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1330.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1340.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1350.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1360.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1370.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1380.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
INSERT INTO "budget_samples" VALUES('c1','room',1390.0,10.0,NULL,900.0,950.5,1200.0,3.25,NULL,0.0);
CREATE TABLE controller_lease (
	id INTEGER NOT NULL, 
	token INTEGER NOT NULL, 
	holder VARCHAR(255), 
	instance VARCHAR(32), 
	session INTEGER, 
	since DOUBLE NOT NULL, 
	renewed DOUBLE NOT NULL, 
	successor VARCHAR(255), 
	policy_lines TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE controllers (
	name VARCHAR(255) NOT NULL, 
	release VARCHAR(64) NOT NULL, 
	started DOUBLE NOT NULL, 
	seen DOUBLE NOT NULL, 
	ready BOOLEAN NOT NULL, 
	beside_slurmctld BOOLEAN, 
	PRIMARY KEY (name)
);
CREATE TABLE decisions (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        submit REAL NOT NULL,
        time REAL NOT NULL,
        kind TEXT NOT NULL,
        why TEXT NOT NULL,
        details TEXT NOT NULL
    );
INSERT INTO "decisions" VALUES(1,'c1',100,940.0,950.0,'shape','fits now','{"offered": ["gpu:2"], "chosen": "gpu:1"}');
INSERT INTO "decisions" VALUES(2,'c1',105,18940.0,19100.0,'requeue','=cmd|''/c calc''!A1; DROP TABLE records; -- "€雪','{"for_job": 106, "lost_joules": 12.5}');
CREATE TABLE grid_series (
	cluster VARCHAR(64) NOT NULL, 
	quantity VARCHAR(16) NOT NULL, 
	provider VARCHAR(32) NOT NULL, 
	zone VARCHAR(64) NOT NULL, 
	unit VARCHAR(16) NOT NULL, 
	start DOUBLE NOT NULL, 
	"end" DOUBLE NOT NULL, 
	value DOUBLE NOT NULL, 
	fetched DOUBLE NOT NULL, 
	PRIMARY KEY (cluster, quantity, provider, zone, unit, start)
);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',0.0,3600.0,40.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',3600.0,7200.0,41.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',7200.0,10800.0,42.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',10800.0,14400.0,43.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',14400.0,18000.0,44.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',18000.0,21600.0,45.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',21600.0,25200.0,46.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',25200.0,28800.0,47.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',28800.0,32400.0,48.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',32400.0,36000.0,49.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',36000.0,39600.0,50.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',39600.0,43200.0,51.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',43200.0,46800.0,52.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',46800.0,50400.0,53.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',50400.0,54000.0,54.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',54000.0,57600.0,55.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',57600.0,61200.0,56.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',61200.0,64800.0,57.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',64800.0,68400.0,58.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',68400.0,72000.0,59.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',72000.0,75600.0,60.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',75600.0,79200.0,61.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',79200.0,82800.0,62.5,600.0);
INSERT INTO "grid_series" VALUES('c1','carbon','csv','FR','g/kWh',82800.0,86400.0,63.5,600.0);
CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        kind BLOB NOT NULL,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    , user TEXT);
INSERT INTO "history" VALUES(1,X'D667D3FFAB4BA0A1',1600.0,'{"end":1600.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":1050.0,"user":"alice","account":"physics","partition":"cpu","name":"train-0","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"none","time_limit_s":7200.0,"predicted_s":700.0}','alice');
INSERT INTO "history" VALUES(2,X'1E2570C7E8FEA20C',5201.0,'{"end":5201.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":1253.5833333333335,"user":"bob","account":"Physik","partition":"cpu","name":"train-1","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":3.0,"predicted_s":650.5}','bob');
INSERT INTO "history" VALUES(3,X'29EDBB20C40AB636',8802.0,'{"end":8802.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":1507.1666666666665,"user":"alice","account":"physics","partition":"cpu","name":"train-2","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":6.0}','alice');
INSERT INTO "history" VALUES(4,X'70DD8A76111714D1',12403.0,'{"end":12403.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":1760.75,"user":"bob","account":"Physik","partition":"cpu","name":"=cmd|''/c calc''!A1; DROP TABLE records; -- \"\u20ac\u96ea","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"none","time_limit_s":7200.0,"gpu_joules":9.0}','bob');
INSERT INTO "history" VALUES(5,X'F12E6EAA2488DBEE',16004.0,'{"end":16004.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":2064.3333333333335,"user":"alice","account":"physics","partition":"cpu","name":"train-4","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0}','alice');
INSERT INTO "history" VALUES(6,X'800CFFD31E739E21',19605.0,'{"end":19605.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":2267.9166666666665,"user":"bob","account":"Physik","partition":"cpu","name":"train-5","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":15.0}','bob');
INSERT INTO "history" VALUES(7,X'D9895B3C2ADF2A49',23206.0,'{"end":23206.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":2521.5,"user":"alice","account":"physics","partition":"cpu","name":"train-6","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"none","time_limit_s":7200.0,"gpu_joules":18.0}','alice');
INSERT INTO "history" VALUES(8,X'438FA8334286C0CB',26807.0,'{"end":26807.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":2754.0833333333335,"user":"bob","account":"Physik","partition":"cpu","name":"train-7","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0}','bob');
INSERT INTO "history" VALUES(9,X'1EEFD268394F3178',30408.0,'{"end":30408.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":3078.6666666666665,"user":"alice","account":"physics","partition":"cpu","name":"train-8","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0}','alice');
INSERT INTO "history" VALUES(10,X'F727EE72FFE757F1',34009.0,'{"end":34009.0,"duration_s":101.0,"state":"FAILED","energy_joules":3282.25,"user":"bob","account":"Physik","partition":"cpu","name":"train-9","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"none","time_limit_s":7200.0,"gpu_joules":27.0}','bob');
INSERT INTO "history" VALUES(11,X'06D204861953BBEC',37610.0,'{"end":37610.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":3535.8333333333335,"user":"alice","account":"physics","partition":"cpu","name":"train-10","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":30.0}','alice');
INSERT INTO "history" VALUES(12,X'939BEC6DEB026215',41211.0,'{"end":41211.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":3789.4166666666665,"user":"bob","account":"Physik","partition":"cpu","name":"train-11","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":33.0}','bob');
INSERT INTO "history" VALUES(13,X'955CF9FAFD87350D',44812.0,'{"end":44812.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":4093.0,"user":"alice","account":"physics","partition":"cpu","name":"train-12","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"none","time_limit_s":7200.0}','alice');
INSERT INTO "history" VALUES(14,X'714512ED5CCAAD57',48413.0,'{"end":48413.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":4296.583333333333,"user":"bob","account":"Physik","partition":"cpu","name":"train-13","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":39.0}','bob');
INSERT INTO "history" VALUES(15,X'FF9E1005159B684F',59216.0,'{"end":59216.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":5107.333333333333,"user":"alice","account":"physics","partition":"cpu","name":"train-16","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0}','alice');
INSERT INTO "history" VALUES(16,X'B674D475B3DBB348',62817.0,'{"end":62817.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":5310.916666666667,"user":"bob","account":"Physik","partition":"cpu","name":"train-17","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":51.0}','bob');
INSERT INTO "history" VALUES(17,X'0EFC2BA72FA6F143',66418.0,'{"end":66418.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":5564.5,"user":"alice","account":"physics","partition":"cpu","name":"train-18","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"none","time_limit_s":7200.0,"gpu_joules":54.0}','alice');
INSERT INTO "history" VALUES(18,X'DBCA1A37D0AB300D',70019.0,'{"end":70019.0,"duration_s":101.0,"state":"COMPLETED","energy_joules":5818.083333333333,"user":"bob","account":"Physik","partition":"cpu","name":"train-19","fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","nodes":1,"cpus":8,"gpus":1,"policy":"edp","time_limit_s":7200.0,"gpu_joules":57.0}','bob');
CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        submit REAL NOT NULL,
        display_id TEXT NOT NULL,
        name TEXT NOT NULL,
        account TEXT,
        partition TEXT,
        user TEXT,
        state TEXT NOT NULL,
        start REAL,
        "end" REAL,
        elapsed_s REAL,
        nodes INTEGER,
        array_job_id INTEGER,
        array_task_id INTEGER,
        het_job_id INTEGER,
        het_offset INTEGER,
        finished INTEGER NOT NULL,
        updated REAL NOT NULL, time_limit_s REAL, requested TEXT, learned INTEGER NOT NULL DEFAULT 0, tuning_learned INTEGER NOT NULL DEFAULT 0, qos VARCHAR(255), allocated TEXT, exit_code VARCHAR(255), step_exit_code VARCHAR(255),
        UNIQUE (cluster, job_id, submit)
    );
INSERT INTO "jobs" VALUES(1,'c1',100,940.0,'100','train-0','physics','cpu','alice','COMPLETED',1000.0,1600.0,100.0,2,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,1,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(2,'c1',101,4540.0,'101','train-1','Physik','cpu','bob','COMPLETED',4600.0,5201.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,1,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(3,'c1',102,8140.0,'102','train-2','physics','cpu','alice','COMPLETED',8200.0,8802.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,1,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(4,'c1',103,11740.0,'103','=cmd|''/c calc''!A1; DROP TABLE records; -- "€雪','Physik','cpu','bob','COMPLETED',11800.0,12403.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,1,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(5,'c1',104,15340.0,'104','train-4','physics','cpu','alice','COMPLETED',15400.0,16004.0,100.0,2,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,1,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(6,'c1',105,18940.0,'105','train-5','Physik','cpu','bob','COMPLETED',19000.0,19605.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,1,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(7,'c1',106,22540.0,'106','train-6','physics','cpu','alice','COMPLETED',22600.0,23206.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(8,'c1',107,26140.0,'107','train-7','Physik','cpu','bob','COMPLETED',26200.0,26807.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(9,'c1',108,29740.0,'108','train-8','physics','cpu','alice','COMPLETED',29800.0,30408.0,100.0,2,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(10,'c1',109,33340.0,'109','train-9','Physik','cpu','bob','FAILED',33400.0,34009.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(11,'c1',110,36940.0,'110_4','train-10','physics','cpu','alice','COMPLETED',37000.0,37610.0,100.0,1,110,4,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(12,'c1',111,40540.0,'111','train-11','Physik','cpu','bob','COMPLETED',40600.0,41211.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(13,'c1',112,44140.0,'112','train-12','physics','cpu','alice','COMPLETED',44200.0,44812.0,100.0,2,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(14,'c1',113,47740.0,'113','train-13','Physik','cpu','bob','COMPLETED',47800.0,48413.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(15,'c1',115,54940.0,'115','train-15','Physik','cpu','bob','COMPLETED',55000.0,55615.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',0,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(16,'c1',116,58540.0,'116','train-16','physics','cpu','alice','COMPLETED',58600.0,59216.0,100.0,2,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(17,'c1',117,62140.0,'117','train-17','Physik','cpu','bob','COMPLETED',62200.0,62817.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(18,'c1',118,65740.0,'118','train-18','physics','cpu','alice','COMPLETED',65800.0,66418.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(19,'c1',119,69340.0,'119','train-19','Physik','cpu','bob','COMPLETED',69400.0,70019.0,100.0,1,NULL,NULL,NULL,NULL,1,1800000000.0,7200.0,'cpu=8,mem=16G,node=1,gres/gpu=1',1,0,NULL,NULL,NULL,NULL);
CREATE TABLE node_periods (
	id INTEGER NOT NULL, 
	period_id VARCHAR(255) NOT NULL, 
	cluster VARCHAR(64) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	late_seconds DOUBLE NOT NULL, 
	uncertain_seconds DOUBLE NOT NULL, 
	received DOUBLE NOT NULL, 
	extra TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (cluster, node, start), 
	UNIQUE (period_id)
);
INSERT INTO "node_periods" VALUES(1,'00000000000000000000000000000000','c1','n2',0,3600,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(2,'00000000000000000000000000000001','c1','n1',3600,7200,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(3,'00000000000000000000000000000002','c1','n1',7200,10800,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(4,'00000000000000000000000000000003','c1','n1',10800,14400,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(5,'00000000000000000000000000000004','c1','n1',14400,18000,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(6,'00000000000000000000000000000005','c1','n2',18000,21600,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(7,'00000000000000000000000000000006','c1','n1',21600,25200,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(8,'00000000000000000000000000000007','c1','n1',25200,28800,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(9,'00000000000000000000000000000008','c1','n1',28800,32400,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(10,'00000000000000000000000000000009','c1','n1',32400,36000,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(11,'0000000000000000000000000000000a','c1','n2',36000,39600,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(12,'0000000000000000000000000000000b','c1','n1',39600,43200,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(13,'0000000000000000000000000000000c','c1','n1',43200,46800,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(14,'0000000000000000000000000000000d','c1','n1',46800,50400,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(15,'0000000000000000000000000000000e','c1','n1',50400,54000,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(16,'0000000000000000000000000000000f','c1','n2',54000,57600,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(17,'00000000000000000000000000000010','c1','n1',57600,61200,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(18,'00000000000000000000000000000011','c1','n1',61200,64800,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(19,'00000000000000000000000000000012','c1','n1',64800,68400,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(20,'00000000000000000000000000000013','c1','n1',68400,72000,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(21,'00000000000000000000000000000014','c1','n2',72000,75600,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(22,'00000000000000000000000000000015','c1','n1',75600,79200,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(23,'00000000000000000000000000000016','c1','n1',79200,82800,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(24,'00000000000000000000000000000017','c1','n1',82800,86400,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(25,'00000000000000000000000000000018','c1','n1',86400,90000,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(26,'00000000000000000000000000000019','c1','n2',90000,93600,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(27,'0000000000000000000000000000001a','c1','n1',93600,97200,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(28,'0000000000000000000000000000001b','c1','n1',97200,100800,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(29,'0000000000000000000000000000001c','c1','n1',100800,104400,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(30,'0000000000000000000000000000001d','c1','n1',104400,108000,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(31,'0000000000000000000000000000001e','c1','n2',108000,111600,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(32,'0000000000000000000000000000001f','c1','n1',111600,115200,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(33,'00000000000000000000000000000020','c1','n1',115200,118800,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(34,'00000000000000000000000000000021','c1','n1',118800,122400,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(35,'00000000000000000000000000000022','c1','n1',122400,126000,0.0,0.0,200000.0,'{}');
INSERT INTO "node_periods" VALUES(36,'00000000000000000000000000000023','c1','n2',126000,129600,0.0,0.0,200000.0,'{}');
CREATE TABLE nodes (
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        last_end REAL NOT NULL,
        last_received REAL NOT NULL,
        PRIMARY KEY (cluster, node)
    ) WITHOUT ROWID;
INSERT INTO "nodes" VALUES('c1','n1',84423.0,84428.0);
INSERT INTO "nodes" VALUES('c1','n2',73620.0,1800000000.0);
CREATE TABLE observations (
	record INTEGER NOT NULL, 
	"end" DOUBLE NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (record), 
	FOREIGN KEY(record) REFERENCES records (id) ON DELETE CASCADE
);
INSERT INTO "observations" VALUES(1,1600.0,'eAGrVsrLT0lVslLKM1TSUSpOLcpMLVayio7VUSpKzMsGM2sBzjYLbg==');
INSERT INTO "observations" VALUES(13,30408.0,'eAGrVsrLT0lVslLKM1TSUSpOLcpMLVayio7VUSpKzMsGM2sBzjYLbg==');
INSERT INTO "observations" VALUES(23,59216.0,'eAGrVsrLT0lVslLKM1TSUSpOLcpMLVayio7VUSpKzMsGM2sBzjYLbg==');
CREATE TABLE periods (
	cluster VARCHAR(64) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	job_id INTEGER NOT NULL, 
	restart_count INTEGER NOT NULL, 
	uid INTEGER, 
	cpu_uj INTEGER, 
	dram_uj INTEGER, 
	gpu_uj INTEGER, 
	other_uj INTEGER, 
	total_uj INTEGER NOT NULL, 
	usage_group INTEGER, 
	PRIMARY KEY (cluster, node, start, kind, job_id, restart_count)
);
INSERT INTO "periods" VALUES('c1','n2',0,3600,'job',100,0,1000,1000000000,NULL,3000000000000,NULL,3001000000000,1);
INSERT INTO "periods" VALUES('c1','n2',0,3600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',0,3600,'unattributed',0,0,NULL,0,NULL,0,NULL,0,8);
INSERT INTO "periods" VALUES('c1','n1',3600,7200,'job',101,0,1000,1000000001,NULL,3000000000000,NULL,3001000000001,7);
INSERT INTO "periods" VALUES('c1','n1',3600,7200,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',3600,7200,'unattributed',0,0,NULL,1,NULL,0,NULL,1,8);
INSERT INTO "periods" VALUES('c1','n1',7200,10800,'job',102,0,1000,1000000002,NULL,3000000000000,NULL,3001000000002,3);
INSERT INTO "periods" VALUES('c1','n1',7200,10800,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',7200,10800,'unattributed',0,0,NULL,2,NULL,0,NULL,2,8);
INSERT INTO "periods" VALUES('c1','n1',10800,14400,'job',103,0,1000,1000000003,NULL,3000000000000,NULL,3001000000003,9);
INSERT INTO "periods" VALUES('c1','n1',10800,14400,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',10800,14400,'unattributed',0,0,NULL,3,NULL,0,NULL,3,8);
INSERT INTO "periods" VALUES('c1','n1',14400,18000,'job',104,0,1000,1000000004,NULL,3000000000000,NULL,3001000000004,3);
INSERT INTO "periods" VALUES('c1','n1',14400,18000,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',14400,18000,'unattributed',0,0,NULL,4,NULL,0,NULL,4,8);
INSERT INTO "periods" VALUES('c1','n2',18000,21600,'job',105,0,1000,1000000005,NULL,3000000000000,NULL,3001000000005,10);
INSERT INTO "periods" VALUES('c1','n2',18000,21600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',18000,21600,'unattributed',0,0,NULL,5,NULL,0,NULL,5,8);
INSERT INTO "periods" VALUES('c1','n1',21600,25200,'job',106,0,1000,1000000006,NULL,3000000000000,NULL,3001000000006,1);
INSERT INTO "periods" VALUES('c1','n1',21600,25200,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',21600,25200,'unattributed',0,0,NULL,6,NULL,0,NULL,6,8);
INSERT INTO "periods" VALUES('c1','n1',25200,28800,'job',107,0,1000,1000000007,NULL,3000000000000,NULL,3001000000007,7);
INSERT INTO "periods" VALUES('c1','n1',25200,28800,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',25200,28800,'unattributed',0,0,NULL,7,NULL,0,NULL,7,8);
INSERT INTO "periods" VALUES('c1','n1',28800,32400,'job',108,0,1000,1000000008,NULL,3000000000000,NULL,3001000000008,3);
INSERT INTO "periods" VALUES('c1','n1',28800,32400,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',28800,32400,'unattributed',0,0,NULL,8,NULL,0,NULL,8,8);
INSERT INTO "periods" VALUES('c1','n1',32400,36000,'job',109,0,1000,1000000009,NULL,3000000000000,NULL,3001000000009,9);
INSERT INTO "periods" VALUES('c1','n1',32400,36000,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',32400,36000,'unattributed',0,0,NULL,9,NULL,0,NULL,9,8);
INSERT INTO "periods" VALUES('c1','n2',36000,39600,'job',110,0,1000,1000000010,NULL,3000000000000,NULL,3001000000010,3);
INSERT INTO "periods" VALUES('c1','n2',36000,39600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',36000,39600,'unattributed',0,0,NULL,10,NULL,0,NULL,10,8);
INSERT INTO "periods" VALUES('c1','n1',39600,43200,'job',111,0,1000,1000000011,NULL,3000000000000,NULL,3001000000011,7);
INSERT INTO "periods" VALUES('c1','n1',39600,43200,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',39600,43200,'unattributed',0,0,NULL,11,NULL,0,NULL,11,8);
INSERT INTO "periods" VALUES('c1','n1',43200,46800,'job',112,0,1000,1000000012,NULL,3000000000000,NULL,3001000000012,1);
INSERT INTO "periods" VALUES('c1','n1',43200,46800,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',43200,46800,'unattributed',0,0,NULL,12,NULL,0,NULL,12,8);
INSERT INTO "periods" VALUES('c1','n1',46800,50400,'job',113,0,1000,1000000013,NULL,3000000000000,NULL,3001000000013,7);
INSERT INTO "periods" VALUES('c1','n1',46800,50400,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',46800,50400,'unattributed',0,0,NULL,13,NULL,0,NULL,13,8);
INSERT INTO "periods" VALUES('c1','n1',50400,54000,'job',114,0,1000,1000000014,NULL,3000000000000,NULL,3001000000014,10);
INSERT INTO "periods" VALUES('c1','n1',50400,54000,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',50400,54000,'unattributed',0,0,NULL,14,NULL,0,NULL,14,8);
INSERT INTO "periods" VALUES('c1','n2',54000,57600,'job',115,0,1000,1000000015,NULL,3000000000000,NULL,3001000000015,13);
INSERT INTO "periods" VALUES('c1','n2',54000,57600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',54000,57600,'unattributed',0,0,NULL,15,NULL,0,NULL,15,8);
INSERT INTO "periods" VALUES('c1','n1',57600,61200,'job',116,0,1000,1000000016,NULL,3000000000000,NULL,3001000000016,3);
INSERT INTO "periods" VALUES('c1','n1',57600,61200,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',57600,61200,'unattributed',0,0,NULL,16,NULL,0,NULL,16,8);
INSERT INTO "periods" VALUES('c1','n1',61200,64800,'job',117,0,1000,1000000017,NULL,3000000000000,NULL,3001000000017,7);
INSERT INTO "periods" VALUES('c1','n1',61200,64800,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',61200,64800,'unattributed',0,0,NULL,17,NULL,0,NULL,17,8);
INSERT INTO "periods" VALUES('c1','n1',64800,68400,'job',118,0,1000,1000000018,NULL,3000000000000,NULL,3001000000018,1);
INSERT INTO "periods" VALUES('c1','n1',64800,68400,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',64800,68400,'unattributed',0,0,NULL,18,NULL,0,NULL,18,8);
INSERT INTO "periods" VALUES('c1','n1',68400,72000,'job',119,0,1000,1000000019,NULL,3000000000000,NULL,3001000000019,7);
INSERT INTO "periods" VALUES('c1','n1',68400,72000,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',68400,72000,'unattributed',0,0,NULL,19,NULL,0,NULL,19,8);
INSERT INTO "periods" VALUES('c1','n2',72000,75600,'job',120,0,1000,1000000020,NULL,3000000000000,NULL,3001000000020,12);
INSERT INTO "periods" VALUES('c1','n2',72000,75600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',72000,75600,'unattributed',0,0,NULL,20,NULL,0,NULL,20,8);
INSERT INTO "periods" VALUES('c1','n1',75600,79200,'job',121,0,1000,1000000021,NULL,3000000000000,NULL,3001000000021,11);
INSERT INTO "periods" VALUES('c1','n1',75600,79200,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',75600,79200,'unattributed',0,0,NULL,21,NULL,0,NULL,21,8);
INSERT INTO "periods" VALUES('c1','n1',79200,82800,'job',122,0,1000,1000000022,NULL,3000000000000,NULL,3001000000022,12);
INSERT INTO "periods" VALUES('c1','n1',79200,82800,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',79200,82800,'unattributed',0,0,NULL,22,NULL,0,NULL,22,8);
INSERT INTO "periods" VALUES('c1','n1',82800,86400,'job',123,0,1000,1000000023,NULL,3000000000000,NULL,3001000000023,12);
INSERT INTO "periods" VALUES('c1','n1',82800,86400,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',82800,86400,'unattributed',0,0,NULL,23,NULL,0,NULL,23,8);
INSERT INTO "periods" VALUES('c1','n1',86400,90000,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',86400,90000,'unattributed',0,0,NULL,24,NULL,0,NULL,24,8);
INSERT INTO "periods" VALUES('c1','n2',90000,93600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',90000,93600,'unattributed',0,0,NULL,25,NULL,0,NULL,25,8);
INSERT INTO "periods" VALUES('c1','n1',93600,97200,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',93600,97200,'unattributed',0,0,NULL,26,NULL,0,NULL,26,8);
INSERT INTO "periods" VALUES('c1','n1',97200,100800,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',97200,100800,'unattributed',0,0,NULL,27,NULL,0,NULL,27,8);
INSERT INTO "periods" VALUES('c1','n1',100800,104400,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',100800,104400,'unattributed',0,0,NULL,28,NULL,0,NULL,28,8);
INSERT INTO "periods" VALUES('c1','n1',104400,108000,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',104400,108000,'unattributed',0,0,NULL,29,NULL,0,NULL,29,8);
INSERT INTO "periods" VALUES('c1','n2',108000,111600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',108000,111600,'unattributed',0,0,NULL,30,NULL,0,NULL,30,8);
INSERT INTO "periods" VALUES('c1','n1',111600,115200,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',111600,115200,'unattributed',0,0,NULL,31,NULL,0,NULL,31,8);
INSERT INTO "periods" VALUES('c1','n1',115200,118800,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',115200,118800,'unattributed',0,0,NULL,32,NULL,0,NULL,32,8);
INSERT INTO "periods" VALUES('c1','n1',118800,122400,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',118800,122400,'unattributed',0,0,NULL,33,NULL,0,NULL,33,8);
INSERT INTO "periods" VALUES('c1','n1',122400,126000,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n1',122400,126000,'unattributed',0,0,NULL,34,NULL,0,NULL,34,8);
INSERT INTO "periods" VALUES('c1','n2',126000,129600,'idle',0,0,NULL,7000001,NULL,9,NULL,7000010,6);
INSERT INTO "periods" VALUES('c1','n2',126000,129600,'unattributed',0,0,NULL,35,NULL,0,NULL,35,8);
CREATE TABLE predictions (
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        start REAL NOT NULL,
        predicted_s REAL NOT NULL,
        PRIMARY KEY (cluster, job_id, start)
    ) WITHOUT ROWID;
INSERT INTO "predictions" VALUES('c1',100,1000.0,700.0);
INSERT INTO "predictions" VALUES('c1',101,4600.0,650.5);
CREATE TABLE quota_changes (
	id INTEGER NOT NULL, 
	cluster VARCHAR(64) NOT NULL, 
	time DOUBLE NOT NULL, 
	actor VARCHAR(255) NOT NULL, 
	account VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	why TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "quota_changes" VALUES(1,'c1',500.0,'root','physics','','set');
CREATE TABLE quotas (
	cluster VARCHAR(64) NOT NULL, 
	account VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	resource VARCHAR(16) NOT NULL, 
	period VARCHAR(16) NOT NULL, 
	start DOUBLE, 
	"end" DOUBLE, 
	amount DOUBLE NOT NULL, 
	unit VARCHAR(16) NOT NULL, 
	warn_percent DOUBLE, 
	hold_percent DOUBLE, 
	actor VARCHAR(255) NOT NULL, 
	time DOUBLE NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (cluster, account, user, resource, period)
);
INSERT INTO "quotas" VALUES('c1','physics','','energy','custom',1000.0,90000.0,3600000000.0,'J',80.0,NULL,'root',500.0,'=cmd|''/c calc''!A1; DROP TABLE records; -- "€雪');
CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        record_id TEXT NOT NULL UNIQUE,
        cluster TEXT NOT NULL,
        node TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        restart_count INTEGER NOT NULL,
        step TEXT NOT NULL,
        start REAL NOT NULL,
        "end" REAL NOT NULL,
        uid INTEGER NOT NULL,
        user TEXT,
        account TEXT,
        partition TEXT,
        policy TEXT NOT NULL,
        energy_joules REAL,
        received REAL NOT NULL,
        job INTEGER REFERENCES jobs (id),
        body TEXT NOT NULL,
        UNIQUE (node, job_id, start, step, restart_count, cluster)
    );
INSERT INTO "records" VALUES(1,'00000000000000000000000000000000','c1','n1',100,0,'',1000.0,1600.0,1000,'alice','physics','cpu','none',1000.0,1605.0,1,'{"schema":1,"cluster":"c1","node":"n1","job_id":100,"uid":1000,"policy":"none","start":1000.0,"end":1600.0,"components":[{"name":"cpu","energy_joules":1000.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":0.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":0.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000000"}');
INSERT INTO "records" VALUES(2,'0000000000000000000000000000000f','c1','n2',100,0,'',1000.0,1600.0,1000,'alice','physics','cpu','none',50.0,1800000000.0,1,'{"schema":1,"cluster":"c1","node":"n2","job_id":100,"uid":1000,"policy":"none","start":1000.0,"end":1600.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000000f"}');
INSERT INTO "records" VALUES(3,'0000000000000000000000000000000e','c1','n1',100,0,'batch',1000.0,1600.0,1000,'alice','physics','cpu','none',50.0,1800000000.0,1,'{"schema":1,"cluster":"c1","node":"n1","job_id":100,"uid":1000,"policy":"none","start":1000.0,"end":1600.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":"batch","restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000000e"}');
INSERT INTO "records" VALUES(4,'00000000000000000000000000000001','c1','n1',101,0,'',4600.0,5201.0,1001,'bob','Physik','cpu','edp',1.2535833333333334849e+03,5206.0,2,'{"schema":1,"cluster":"c1","node":"n1","job_id":101,"uid":1001,"policy":"edp","start":4600.0,"end":5201.0,"components":[{"name":"cpu","energy_joules":1000.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":250.25,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":3.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000001"}');
INSERT INTO "records" VALUES(5,'00000000000000000000000000000002','c1','n1',102,0,'',8200.0,8802.0,1000,'alice','physics','cpu','edp',1.50716666666666651509e+03,8807.0,3,'{"schema":1,"cluster":"c1","node":"n1","job_id":102,"uid":1000,"policy":"edp","start":8200.0,"end":8802.0,"components":[{"name":"cpu","energy_joules":1000.6666666666666,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":500.5,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":6.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000002"}');
INSERT INTO "records" VALUES(6,'00000000000000000000000000000003','c1','n1',103,0,'',11800.0,12403.0,1001,'bob','Physik','cpu','none',1760.75,12408.0,4,'{"schema":1,"cluster":"c1","node":"n1","job_id":103,"uid":1001,"policy":"none","start":11800.0,"end":12403.0,"components":[{"name":"cpu","energy_joules":1001.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":750.75,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":9.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000003"}');
INSERT INTO "records" VALUES(7,'00000000000000000000000000000004','c1','n1',104,0,'',15400.0,16004.0,1000,'alice','physics','cpu','edp',2.01433333333333348491e+03,16009.0,5,'{"schema":1,"cluster":"c1","node":"n1","job_id":104,"uid":1000,"policy":"edp","start":15400.0,"end":16004.0,"components":[{"name":"cpu","energy_joules":1001.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":1001.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":12.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000004"}');
INSERT INTO "records" VALUES(8,'0000000000000000000000000000004f','c1','n2',104,0,'',15400.0,16004.0,1000,'alice','physics','cpu','edp',50.0,1800000000.0,5,'{"schema":1,"cluster":"c1","node":"n2","job_id":104,"uid":1000,"policy":"edp","start":15400.0,"end":16004.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000004f"}');
INSERT INTO "records" VALUES(9,'00000000000000000000000000000005','c1','n1',105,1,'',19000.0,19605.0,1001,'bob','Physik','cpu','edp',2.2679166666666665151e+03,19610.0,6,'{"schema":1,"cluster":"c1","node":"n1","job_id":105,"uid":1001,"policy":"edp","start":19000.0,"end":19605.0,"components":[{"name":"cpu","energy_joules":1001.6666666666666,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":1251.25,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":15.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":1,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000005"}');
INSERT INTO "records" VALUES(10,'0000000000000000000000000000005e','c1','n1',105,1,'batch',19000.0,19605.0,1001,'bob','Physik','cpu','edp',50.0,1800000000.0,6,'{"schema":1,"cluster":"c1","node":"n1","job_id":105,"uid":1001,"policy":"edp","start":19000.0,"end":19605.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":"batch","restart_count":1,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000005e"}');
INSERT INTO "records" VALUES(11,'00000000000000000000000000000006','c1','n1',106,0,'',22600.0,23206.0,1000,'alice','physics','cpu','none',2521.5,23211.0,7,'{"schema":1,"cluster":"c1","node":"n1","job_id":106,"uid":1000,"policy":"none","start":22600.0,"end":23206.0,"components":[{"name":"cpu","energy_joules":1002.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":1501.5,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":18.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000006"}');
INSERT INTO "records" VALUES(12,'00000000000000000000000000000007','c1','n1',107,0,'',26200.0,26807.0,1001,'bob','Physik','cpu','edp',2.75408333333333348491e+03,26812.0,8,'{"schema":1,"cluster":"c1","node":"n1","job_id":107,"uid":1001,"policy":"edp","start":26200.0,"end":26807.0,"components":[{"name":"cpu","energy_joules":1002.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":1751.75,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000007"}');
INSERT INTO "records" VALUES(13,'00000000000000000000000000000008','c1','n1',108,0,'',29800.0,30408.0,1000,'alice','physics','cpu','edp',3.02866666666666651511e+03,30413.0,9,'{"schema":1,"cluster":"c1","node":"n1","job_id":108,"uid":1000,"policy":"edp","start":29800.0,"end":30408.0,"components":[{"name":"cpu","energy_joules":1002.6666666666666,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":2002.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":24.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000008"}');
INSERT INTO "records" VALUES(14,'0000000000000000000000000000008f','c1','n2',108,0,'',29800.0,30408.0,1000,'alice','physics','cpu','edp',50.0,1800000000.0,9,'{"schema":1,"cluster":"c1","node":"n2","job_id":108,"uid":1000,"policy":"edp","start":29800.0,"end":30408.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000008f"}');
INSERT INTO "records" VALUES(15,'00000000000000000000000000000009','c1','n1',109,0,'',33400.0,34009.0,1001,'bob','Physik','cpu','none',3282.25,34014.0,10,'{"schema":1,"cluster":"c1","node":"n1","job_id":109,"uid":1001,"policy":"none","start":33400.0,"end":34009.0,"components":[{"name":"cpu","energy_joules":1003.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":2252.25,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":27.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000009"}');
INSERT INTO "records" VALUES(16,'0000000000000000000000000000000a','c1','n1',110,0,'',37000.0,37610.0,1000,'alice','physics','cpu','edp',3.53583333333333348492e+03,37615.0,11,'{"schema":1,"cluster":"c1","node":"n1","job_id":110,"uid":1000,"policy":"edp","start":37000.0,"end":37610.0,"components":[{"name":"cpu","energy_joules":1003.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":2502.5,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":30.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000000a"}');
INSERT INTO "records" VALUES(17,'000000000000000000000000000000ae','c1','n1',110,0,'batch',37000.0,37610.0,1000,'alice','physics','cpu','edp',50.0,1800000000.0,11,'{"schema":1,"cluster":"c1","node":"n1","job_id":110,"uid":1000,"policy":"edp","start":37000.0,"end":37610.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":"batch","restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"000000000000000000000000000000ae"}');
INSERT INTO "records" VALUES(18,'0000000000000000000000000000000b','c1','n1',111,0,'',40600.0,41211.0,1001,'bob','Physik','cpu','edp',3.78941666666666651512e+03,41216.0,12,'{"schema":1,"cluster":"c1","node":"n1","job_id":111,"uid":1001,"policy":"edp","start":40600.0,"end":41211.0,"components":[{"name":"cpu","energy_joules":1003.6666666666666,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":2752.75,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":33.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000000b"}');
INSERT INTO "records" VALUES(19,'0000000000000000000000000000000c','c1','n1',112,0,'',44200.0,44812.0,1000,'alice','physics','cpu','none',4043.0,44817.0,13,'{"schema":1,"cluster":"c1","node":"n1","job_id":112,"uid":1000,"policy":"none","start":44200.0,"end":44812.0,"components":[{"name":"cpu","energy_joules":1004.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":3003.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":36.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000000c"}');
INSERT INTO "records" VALUES(20,'000000000000000000000000000000cf','c1','n2',112,0,'',44200.0,44812.0,1000,'alice','physics','cpu','none',50.0,1800000000.0,13,'{"schema":1,"cluster":"c1","node":"n2","job_id":112,"uid":1000,"policy":"none","start":44200.0,"end":44812.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"000000000000000000000000000000cf"}');
INSERT INTO "records" VALUES(21,'0000000000000000000000000000000d','c1','n1',113,0,'',47800.0,48413.0,1001,'bob','Physik','cpu','edp',4.29658333333333303022e+03,48418.0,14,'{"schema":1,"cluster":"c1","node":"n1","job_id":113,"uid":1001,"policy":"edp","start":47800.0,"end":48413.0,"components":[{"name":"cpu","energy_joules":1004.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":3253.25,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":39.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000000d"}');
INSERT INTO "records" VALUES(22,'000000000000000000000000000000fe','c1','n1',115,0,'batch',55000.0,55615.0,1001,'bob','Physik','cpu','none',50.0,1800000000.0,15,'{"schema":1,"cluster":"c1","node":"n1","job_id":115,"uid":1001,"policy":"none","start":55000.0,"end":55615.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":"batch","restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"000000000000000000000000000000fe"}');
INSERT INTO "records" VALUES(23,'00000000000000000000000000000010','c1','n1',116,0,'',58600.0,59216.0,1000,'alice','physics','cpu','edp',5.05733333333333303022e+03,59221.0,16,'{"schema":1,"cluster":"c1","node":"n1","job_id":116,"uid":1000,"policy":"edp","start":58600.0,"end":59216.0,"components":[{"name":"cpu","energy_joules":1005.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":4004.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":48.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000010"}');
INSERT INTO "records" VALUES(24,'0000000000000000000000000000010f','c1','n2',116,0,'',58600.0,59216.0,1000,'alice','physics','cpu','edp',50.0,1800000000.0,16,'{"schema":1,"cluster":"c1","node":"n2","job_id":116,"uid":1000,"policy":"edp","start":58600.0,"end":59216.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000010f"}');
INSERT INTO "records" VALUES(25,'00000000000000000000000000000011','c1','n1',117,0,'',62200.0,62817.0,1001,'bob','Physik','cpu','edp',5.31091666666666696984e+03,62822.0,17,'{"schema":1,"cluster":"c1","node":"n1","job_id":117,"uid":1001,"policy":"edp","start":62200.0,"end":62817.0,"components":[{"name":"cpu","energy_joules":1005.6666666666666,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":4254.25,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":51.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000011"}');
INSERT INTO "records" VALUES(26,'00000000000000000000000000000012','c1','n1',118,0,'',65800.0,66418.0,1000,'alice','physics','cpu','none',5564.5,66423.0,18,'{"schema":1,"cluster":"c1","node":"n1","job_id":118,"uid":1000,"policy":"none","start":65800.0,"end":66418.0,"components":[{"name":"cpu","energy_joules":1006.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":4504.5,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":54.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000012"}');
INSERT INTO "records" VALUES(27,'00000000000000000000000000000013','c1','n1',119,0,'',69400.0,70019.0,1001,'bob','Physik','cpu','edp',5.81808333333333303023e+03,70024.0,19,'{"schema":1,"cluster":"c1","node":"n1","job_id":119,"uid":1001,"policy":"edp","start":69400.0,"end":70019.0,"components":[{"name":"cpu","energy_joules":1006.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":4754.75,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":57.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000013"}');
INSERT INTO "records" VALUES(28,'00000000000000000000000000000014','c1','n1',120,0,'',73000.0,73620.0,1000,NULL,NULL,NULL,'edp',6.07166666666666696985e+03,73625.0,NULL,'{"schema":1,"cluster":"c1","node":"n1","job_id":120,"uid":1000,"policy":"edp","start":73000.0,"end":73620.0,"components":[{"name":"cpu","energy_joules":1006.6666666666666,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":5005.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":60.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000014"}');
INSERT INTO "records" VALUES(29,'0000000000000000000000000000014f','c1','n2',120,0,'',73000.0,73620.0,1000,NULL,NULL,NULL,'edp',50.0,1800000000.0,NULL,'{"schema":1,"cluster":"c1","node":"n2","job_id":120,"uid":1000,"policy":"edp","start":73000.0,"end":73620.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000014f"}');
INSERT INTO "records" VALUES(30,'0000000000000000000000000000014e','c1','n1',120,0,'batch',73000.0,73620.0,1000,NULL,NULL,NULL,'edp',50.0,1800000000.0,NULL,'{"schema":1,"cluster":"c1","node":"n1","job_id":120,"uid":1000,"policy":"edp","start":73000.0,"end":73620.0,"components":[{"name":"cpu","energy_joules":50.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":null,"source":null,"quality":"measured"}],"step":"batch","restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":null,"requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"0000000000000000000000000000014e"}');
INSERT INTO "records" VALUES(31,'00000000000000000000000000000015','c1','n1',121,0,'',76600.0,77221.0,1001,NULL,NULL,NULL,'none',6325.25,77226.0,NULL,'{"schema":1,"cluster":"c1","node":"n1","job_id":121,"uid":1001,"policy":"none","start":76600.0,"end":77221.0,"components":[{"name":"cpu","energy_joules":1007.0,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":5255.25,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":63.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000015"}');
INSERT INTO "records" VALUES(32,'00000000000000000000000000000016','c1','n1',122,0,'',80200.0,80822.0,1000,NULL,NULL,NULL,'edp',6.57883333333333303024e+03,80827.0,NULL,'{"schema":1,"cluster":"c1","node":"n1","job_id":122,"uid":1000,"policy":"edp","start":80200.0,"end":80822.0,"components":[{"name":"cpu","energy_joules":1007.3333333333334,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":5505.5,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":66.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000016"}');
INSERT INTO "records" VALUES(33,'00000000000000000000000000000017','c1','n1',123,0,'',83800.0,84423.0,1001,NULL,NULL,NULL,'edp',6.83241666666666696986e+03,84428.0,NULL,'{"schema":1,"cluster":"c1","node":"n1","job_id":123,"uid":1001,"policy":"edp","start":83800.0,"end":84423.0,"components":[{"name":"cpu","energy_joules":1007.6666666666666,"source":"powercap:intel-rapl","quality":"measured"},{"name":"dram","energy_joules":5755.75,"source":"powercap:intel-rapl","quality":"measured"},{"name":"gpu[0]","energy_joules":69.0,"source":"nvml:total_energy","quality":"measured"}],"step":null,"restart_count":0,"sluid":null,"user":null,"partition":null,"model":null,"tag":null,"fingerprint":"9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f","requested":{},"applied":[],"devices":[],"cpus":null,"gpus":[],"mean_watts":null,"peak_watts":null,"seconds_above_cap":null,"throttled_seconds":null,"budget_capped_seconds":null,"uncertain_seconds":0.0,"tuning":null,"notes":[],"record_id":"00000000000000000000000000000017"}');
CREATE TABLE schema_version (version INTEGER NOT NULL, applied REAL NOT NULL);
INSERT INTO "schema_version" VALUES(1,1.0);
INSERT INTO "schema_version" VALUES(2,2.0);
INSERT INTO "schema_version" VALUES(3,3.0);
INSERT INTO "schema_version" VALUES(4,4.0);
INSERT INTO "schema_version" VALUES(5,5.0);
INSERT INTO "schema_version" VALUES(6,6.0);
INSERT INTO "schema_version" VALUES(7,7.0);
INSERT INTO "schema_version" VALUES(8,8.0);
INSERT INTO "schema_version" VALUES(9,9.0);
INSERT INTO "schema_version" VALUES(10,10.0);
INSERT INTO "schema_version" VALUES(11,11.0);
INSERT INTO "schema_version" VALUES(12,12.0);
INSERT INTO "schema_version" VALUES(13,13.0);
CREATE TABLE traces (
        record INTEGER PRIMARY KEY REFERENCES records (id) ON DELETE CASCADE,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
INSERT INTO "traces" VALUES(1,1003.0,'{"start":1000.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');
INSERT INTO "traces" VALUES(11,22603.0,'{"start":22600.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');
INSERT INTO "traces" VALUES(19,44203.0,'{"start":44200.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');
INSERT INTO "traces" VALUES(26,65803.0,'{"start":65800.0,"interval_s":1.0,"columns":{"cpu":"eJxjYDhgz8Cg4MDA0OAAAA0DAiA="}}');
CREATE TABLE tuning_pins (
        owner TEXT NOT NULL,
        workload TEXT NOT NULL,
        hardware TEXT NOT NULL,
        point TEXT NOT NULL,
        pinned_by TEXT NOT NULL,
        time REAL NOT NULL,
        PRIMARY KEY (owner, workload, hardware)
    ) WITHOUT ROWID;
INSERT INTO "tuning_pins" VALUES('alice','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','a100','{"gpu":{"cap_watts":200}}','bob',5000.0);
CREATE TABLE tuning_runs (
        id INTEGER PRIMARY KEY,
        job INTEGER NOT NULL UNIQUE REFERENCES jobs (id),
        owner TEXT NOT NULL,
        hardware TEXT NOT NULL,
        fingerprint TEXT,
        model TEXT,
        workload TEXT NOT NULL,
        "end" REAL NOT NULL,
        body TEXT NOT NULL
    );
INSERT INTO "tuning_runs" VALUES(1,1,'alice','a100','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','gpt2','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',1600.0,'{"points":[1,2.5]}');
INSERT INTO "tuning_runs" VALUES(2,2,'bob','a100','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','gpt2','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',5201.0,'{"points":[1,2.5]}');
INSERT INTO "tuning_runs" VALUES(3,3,'alice','a100','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','gpt2','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',8802.0,'{"points":[1,2.5]}');
INSERT INTO "tuning_runs" VALUES(4,4,'bob','a100','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','gpt2','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',12403.0,'{"points":[1,2.5]}');
INSERT INTO "tuning_runs" VALUES(5,5,'alice','a100','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','gpt2','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',16004.0,'{"points":[1,2.5]}');
INSERT INTO "tuning_runs" VALUES(6,6,'bob','a100','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f','gpt2','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',19605.0,'{"points":[1,2.5]}');
CREATE TABLE tuning_starts (
        cluster TEXT NOT NULL,
        job_id INTEGER NOT NULL,
        restart_count INTEGER NOT NULL,
        hardware TEXT NOT NULL,
        owner TEXT NOT NULL,
        workload TEXT NOT NULL,
        exploration INTEGER NOT NULL,
        time REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (cluster, job_id, restart_count, hardware)
    ) WITHOUT ROWID;
INSERT INTO "tuning_starts" VALUES('c1',119,0,'a100','alice','9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f',1,6000.0,'{"point":{}}');
CREATE TABLE usage_changed_jobs (
	cluster VARCHAR(64) NOT NULL, 
	job_id INTEGER NOT NULL, 
	PRIMARY KEY (cluster, job_id)
);
CREATE TABLE usage_days (
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	usage_group INTEGER NOT NULL, 
	total_uj INTEGER NOT NULL, 
	cpu_uj INTEGER NOT NULL, 
	dram_uj INTEGER NOT NULL, 
	gpu_uj INTEGER NOT NULL, 
	other_uj INTEGER NOT NULL, 
	cpu_rows INTEGER NOT NULL, 
	dram_rows INTEGER NOT NULL, 
	gpu_rows INTEGER NOT NULL, 
	other_rows INTEGER NOT NULL, 
	cpu_seconds INTEGER NOT NULL, 
	gpu_seconds INTEGER NOT NULL, 
	node_seconds INTEGER NOT NULL, 
	PRIMARY KEY (start, "end", usage_group), 
	FOREIGN KEY(usage_group) REFERENCES usage_groups (id)
);
INSERT INTO "usage_days" VALUES(0,86400,1,12004000000036,4000000036,0,12000000000000,0,4,0,4,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,3,15005000000040,5000000040,0,15000000000000,0,5,0,5,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,6,168000240,168000024,0,216,0,24,0,24,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,7,18006000000068,6000000068,0,18000000000000,0,6,0,6,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,8,276,276,0,0,0,24,0,24,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,9,6002000000012,2000000012,0,6000000000000,0,2,0,2,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,10,6002000000019,2000000019,0,6000000000000,0,2,0,2,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,11,3001000000021,1000000021,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,12,9003000000065,3000000065,0,9000000000000,0,3,0,3,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,13,3001000000015,1000000015,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_days" VALUES(0,86400,14,0,0,0,0,0,0,0,0,0,0,0,86400);
INSERT INTO "usage_days" VALUES(86400,172800,6,84000120,84000012,0,108,0,12,0,12,0,0,0,0);
INSERT INTO "usage_days" VALUES(86400,172800,8,354,354,0,0,0,12,0,12,0,0,0,0);
INSERT INTO "usage_days" VALUES(86400,172800,14,0,0,0,0,0,0,0,0,0,0,0,43200);
CREATE TABLE usage_groups (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	cluster VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	account VARCHAR(255) NOT NULL, 
	user VARCHAR(255) NOT NULL, 
	uid INTEGER, 
	qos VARCHAR(255) NOT NULL, 
	partition VARCHAR(255) NOT NULL, 
	policy VARCHAR(255) NOT NULL, 
	tag TEXT NOT NULL, 
	gpu_kind TEXT NOT NULL, 
	cpus INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (digest)
);
INSERT INTO "usage_groups" VALUES(1,'7f77b33ebf447d205a13d96e6f0466d98df31ba76442433b172fd2d5bd7452e9','c1','job','physics','alice',1000,'','cpu','none','','',NULL);
INSERT INTO "usage_groups" VALUES(2,'e9f5dd821d9eafb488396ac222950a6a4fb80780d4456aa7dd1d953d1687ee4a','c1','job','Physik','bob',1001,'','cpu','edp','','',NULL);
INSERT INTO "usage_groups" VALUES(3,'abaeb9fd0f5b1ad6693437a858569593602b91f1c04197c4234fb55ed3c2ec6c','c1','job','physics','alice',1000,'','cpu','edp','','',NULL);
INSERT INTO "usage_groups" VALUES(4,'b79e732e771f334f31be487e8b41bb5bb5e22f64f3c71e11f69ae4d5bac381f0','c1','job','Physik','bob',1001,'','cpu','none','','',NULL);
INSERT INTO "usage_groups" VALUES(5,'7d5db075d44bdacb8548f31760181da5ff9f5b411dc1105c70fe0fb626e0ff63','c1','job','Physik','bob',NULL,'','cpu','','','',NULL);
INSERT INTO "usage_groups" VALUES(6,'158aa8d45f0ab9182cbc51e33b4aaf624be5920b6346f2a20b8043b7358ae7bc','c1','idle','','',NULL,'','','','','',NULL);
INSERT INTO "usage_groups" VALUES(7,'eccd7128ceeb130372a3be1e38fe65d1bae8dbc42f01c1d451eecf18673b173e','c1','job','Physik','bob',1000,'','cpu','edp','','',NULL);
INSERT INTO "usage_groups" VALUES(8,'d3e283a9ac26a9eff3f4543261ee537fdfaad399e45cdf529ce7df44d15c80cf','c1','unattributed','','',NULL,'','','','','',NULL);
INSERT INTO "usage_groups" VALUES(9,'8b838a4b9006ef265d317c90e46aaad8354dc8f20c58b769793bf1177412a953','c1','job','Physik','bob',1000,'','cpu','none','','',NULL);
INSERT INTO "usage_groups" VALUES(10,'3b2388546819c2722216674051ead0f5eb09d2fa4b43bda835cb240b3e81aa5f','c1','job','','',1000,'','','','','',NULL);
INSERT INTO "usage_groups" VALUES(11,'5383413ce7fb918998d7201fcfcfc355a207b852528b3a0b1568738913537a06','c1','job','','',1000,'','','none','','',NULL);
INSERT INTO "usage_groups" VALUES(12,'94138f82451db27904cec07084c0f6c260d901ee4bc81223fdf719f5f9a85e1c','c1','job','','',1000,'','','edp','','',NULL);
INSERT INTO "usage_groups" VALUES(13,'8c1fc249bea9a0b58ae1c64ac3f7583e58b315daad062d586b47726be1141c88','c1','job','Physik','bob',1000,'','cpu','','','',NULL);
INSERT INTO "usage_groups" VALUES(14,'ca4c00ff10f6ca14ec1a466dc04c4e8589150fe972ce1bc787ada4acdbaba642','c1','coverage','','',NULL,'','','','','',NULL);
CREATE TABLE usage_nodes (
	cluster VARCHAR(64) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	PRIMARY KEY (cluster, node)
);
INSERT INTO "usage_nodes" VALUES('c1','n2',0,129600);
INSERT INTO "usage_nodes" VALUES('c1','n1',3600,126000);
CREATE TABLE usage_runs (
	job INTEGER NOT NULL, 
	usage_group INTEGER NOT NULL, 
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	cpus INTEGER NOT NULL, 
	gpus INTEGER NOT NULL, 
	PRIMARY KEY (job), 
	FOREIGN KEY(job) REFERENCES jobs (id), 
	FOREIGN KEY(usage_group) REFERENCES usage_groups (id)
);
INSERT INTO "usage_runs" VALUES(1,1,1000,1600,0,0);
INSERT INTO "usage_runs" VALUES(2,2,4600,5201,0,0);
INSERT INTO "usage_runs" VALUES(3,3,8200,8802,0,0);
INSERT INTO "usage_runs" VALUES(4,4,11800,12403,0,0);
INSERT INTO "usage_runs" VALUES(5,3,15400,16004,0,0);
INSERT INTO "usage_runs" VALUES(6,2,19000,19605,0,0);
INSERT INTO "usage_runs" VALUES(7,1,22600,23206,0,0);
INSERT INTO "usage_runs" VALUES(8,2,26200,26807,0,0);
INSERT INTO "usage_runs" VALUES(9,3,29800,30408,0,0);
INSERT INTO "usage_runs" VALUES(10,4,33400,34009,0,0);
INSERT INTO "usage_runs" VALUES(11,3,37000,37610,0,0);
INSERT INTO "usage_runs" VALUES(12,2,40600,41211,0,0);
INSERT INTO "usage_runs" VALUES(13,1,44200,44812,0,0);
INSERT INTO "usage_runs" VALUES(14,2,47800,48413,0,0);
INSERT INTO "usage_runs" VALUES(15,5,55000,55615,0,0);
INSERT INTO "usage_runs" VALUES(16,3,58600,59216,0,0);
INSERT INTO "usage_runs" VALUES(17,2,62200,62817,0,0);
INSERT INTO "usage_runs" VALUES(18,1,65800,66418,0,0);
INSERT INTO "usage_runs" VALUES(19,2,69400,70019,0,0);
CREATE TABLE usage_state (
	name VARCHAR(16) NOT NULL, 
	value INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "usage_state" VALUES('node_period',36);
INSERT INTO "usage_state" VALUES('longest_s',3600);
CREATE TABLE usage_sums (
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	usage_group INTEGER NOT NULL, 
	total_uj INTEGER NOT NULL, 
	cpu_uj INTEGER NOT NULL, 
	dram_uj INTEGER NOT NULL, 
	gpu_uj INTEGER NOT NULL, 
	other_uj INTEGER NOT NULL, 
	cpu_rows INTEGER NOT NULL, 
	dram_rows INTEGER NOT NULL, 
	gpu_rows INTEGER NOT NULL, 
	other_rows INTEGER NOT NULL, 
	cpu_seconds INTEGER NOT NULL, 
	gpu_seconds INTEGER NOT NULL, 
	node_seconds INTEGER NOT NULL, 
	PRIMARY KEY (start, "end", usage_group), 
	FOREIGN KEY(usage_group) REFERENCES usage_groups (id)
);
INSERT INTO "usage_sums" VALUES(0,3600,1,3001000000000,1000000000,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(0,3600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(0,3600,8,0,0,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(0,3600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(3600,7200,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(3600,7200,7,3001000000001,1000000001,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(3600,7200,8,1,1,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(3600,7200,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(7200,10800,3,3001000000002,1000000002,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(7200,10800,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(7200,10800,8,2,2,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(7200,10800,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(10800,14400,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(10800,14400,8,3,3,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(10800,14400,9,3001000000003,1000000003,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(10800,14400,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(14400,18000,3,3001000000004,1000000004,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(14400,18000,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(14400,18000,8,4,4,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(14400,18000,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(18000,21600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(18000,21600,8,5,5,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(18000,21600,10,3001000000005,1000000005,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(18000,21600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(21600,25200,1,3001000000006,1000000006,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(21600,25200,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(21600,25200,8,6,6,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(21600,25200,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(25200,28800,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(25200,28800,7,3001000000007,1000000007,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(25200,28800,8,7,7,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(25200,28800,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(28800,32400,3,3001000000008,1000000008,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(28800,32400,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(28800,32400,8,8,8,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(28800,32400,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(32400,36000,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(32400,36000,8,9,9,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(32400,36000,9,3001000000009,1000000009,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(32400,36000,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(36000,39600,3,3001000000010,1000000010,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(36000,39600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(36000,39600,8,10,10,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(36000,39600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(39600,43200,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(39600,43200,7,3001000000011,1000000011,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(39600,43200,8,11,11,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(39600,43200,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(43200,46800,1,3001000000012,1000000012,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(43200,46800,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(43200,46800,8,12,12,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(43200,46800,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(46800,50400,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(46800,50400,7,3001000000013,1000000013,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(46800,50400,8,13,13,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(46800,50400,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(50400,54000,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(50400,54000,8,14,14,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(50400,54000,10,3001000000014,1000000014,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(50400,54000,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(54000,57600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(54000,57600,8,15,15,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(54000,57600,13,3001000000015,1000000015,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(54000,57600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(57600,61200,3,3001000000016,1000000016,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(57600,61200,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(57600,61200,8,16,16,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(57600,61200,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(61200,64800,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(61200,64800,7,3001000000017,1000000017,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(61200,64800,8,17,17,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(61200,64800,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(64800,68400,1,3001000000018,1000000018,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(64800,68400,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(64800,68400,8,18,18,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(64800,68400,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(68400,72000,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(68400,72000,7,3001000000019,1000000019,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(68400,72000,8,19,19,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(68400,72000,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(72000,75600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(72000,75600,8,20,20,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(72000,75600,12,3001000000020,1000000020,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(72000,75600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(75600,79200,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(75600,79200,8,21,21,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(75600,79200,11,3001000000021,1000000021,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(75600,79200,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(79200,82800,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(79200,82800,8,22,22,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(79200,82800,12,3001000000022,1000000022,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(79200,82800,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(82800,86400,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(82800,86400,8,23,23,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(82800,86400,12,3001000000023,1000000023,0,3000000000000,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(82800,86400,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(86400,90000,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(86400,90000,8,24,24,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(86400,90000,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(90000,93600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(90000,93600,8,25,25,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(90000,93600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(93600,97200,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(93600,97200,8,26,26,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(93600,97200,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(97200,100800,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(97200,100800,8,27,27,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(97200,100800,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(100800,104400,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(100800,104400,8,28,28,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(100800,104400,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(104400,108000,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(104400,108000,8,29,29,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(104400,108000,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(108000,111600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(108000,111600,8,30,30,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(108000,111600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(111600,115200,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(111600,115200,8,31,31,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(111600,115200,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(115200,118800,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(115200,118800,8,32,32,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(115200,118800,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(118800,122400,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(118800,122400,8,33,33,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(118800,122400,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(122400,126000,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(122400,126000,8,34,34,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(122400,126000,14,0,0,0,0,0,0,0,0,0,0,0,3600);
INSERT INTO "usage_sums" VALUES(126000,129600,6,7000010,7000001,0,9,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(126000,129600,8,35,35,0,0,0,1,0,1,0,0,0,0);
INSERT INTO "usage_sums" VALUES(126000,129600,14,0,0,0,0,0,0,0,0,0,0,0,3600);
CREATE TABLE usage_unknown_jobs (
	cluster VARCHAR(64) NOT NULL, 
	job_id INTEGER NOT NULL, 
	restart_count INTEGER NOT NULL, 
	start INTEGER NOT NULL, 
	"end" INTEGER NOT NULL, 
	since DOUBLE NOT NULL, 
	PRIMARY KEY (cluster, job_id, restart_count)
);
INSERT INTO "usage_unknown_jobs" VALUES('c1',114,0,50400,54000,200000.0);
INSERT INTO "usage_unknown_jobs" VALUES('c1',121,0,75600,79200,200000.0);
INSERT INTO "usage_unknown_jobs" VALUES('c1',122,0,79200,82800,200000.0);
INSERT INTO "usage_unknown_jobs" VALUES('c1',123,0,82800,86400,200000.0);
INSERT INTO "usage_unknown_jobs" VALUES('c1',105,0,18000,21600,200000.0);
INSERT INTO "usage_unknown_jobs" VALUES('c1',120,0,72000,75600,200000.0);
CREATE INDEX jobs_array ON jobs (array_job_id) WHERE array_job_id IS NOT NULL;
CREATE INDEX jobs_het ON jobs (het_job_id) WHERE het_job_id IS NOT NULL;
CREATE INDEX jobs_unfinished ON jobs (updated) WHERE NOT finished;
CREATE INDEX records_job_id ON records (job_id, start);
CREATE INDEX records_end ON records ("end");
CREATE INDEX records_uid ON records (uid, "end");
CREATE INDEX records_account ON records (account, "end") WHERE account IS NOT NULL;
CREATE INDEX records_job ON records (job) WHERE job IS NOT NULL;
CREATE INDEX records_without_job ON records (received, cluster, job_id) WHERE job IS NULL;
CREATE INDEX traces_end ON traces ("end");
CREATE INDEX jobs_unlearned ON jobs (updated) WHERE finished AND NOT learned;
CREATE INDEX history_kind ON history (kind, "end");
CREATE INDEX history_end ON history ("end");
CREATE INDEX decisions_job ON decisions (job_id, submit);
CREATE INDEX decisions_time ON decisions (time);
CREATE INDEX predictions_start ON predictions (start);
CREATE INDEX history_user ON history (user, "end");
CREATE INDEX jobs_tuning_unlearned ON jobs (updated) WHERE learned AND NOT tuning_learned;
CREATE INDEX tuning_runs_workload ON tuning_runs (owner, workload, hardware, "end");
CREATE INDEX tuning_runs_model ON tuning_runs (owner, model, hardware, "end") WHERE model IS NOT NULL;
CREATE INDEX tuning_runs_end ON tuning_runs ("end");
CREATE INDEX tuning_starts_workload ON tuning_starts (owner, workload, hardware) WHERE exploration;
CREATE INDEX tuning_starts_time ON tuning_starts (time);
CREATE INDEX budget_samples_time ON budget_samples (time);
CREATE INDEX budget_changes_time ON budget_changes (cluster, time);
CREATE INDEX node_periods_end ON node_periods ("end");
CREATE INDEX periods_job ON periods (cluster, job_id, start);
CREATE INDEX grid_series_end ON grid_series (quantity, "end");
CREATE INDEX quota_changes_time ON quota_changes (cluster, time);
CREATE INDEX usage_unknown_jobs_since ON usage_unknown_jobs (since);
CREATE INDEX usage_runs_end ON usage_runs ("end");
CREATE INDEX observations_end ON observations ("end");
CREATE INDEX adjustment_trials_state ON adjustment_trials (state);
CREATE INDEX adjustment_trials_program ON adjustment_trials (uid, workload);
CREATE INDEX adjustment_runs_created ON adjustment_runs (created);
COMMIT;
